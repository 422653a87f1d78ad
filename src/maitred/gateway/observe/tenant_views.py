"""What a tenant sees of the gateway: its own requests, limits, refusals and programs, and nothing that names another tenant or
a backend. `GET /maitred/state` with the key of a tenant; the rows of `/metrics` are in `metric_rows`.

The fields that the whole page (`state.GatewayState`) has as well mean the same there, of this tenant alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from maitred.admission.terms.config import TenantPolicy
from maitred.core.request import PriorityClass
from maitred.core.steps import Steps
from maitred.core.units import to_seconds
from maitred.gateway.access.page_access import Shown, Viewer
from maitred.gateway.bodies.body_budget import BodyBudget
from maitred.gateway.observe.program_views import ProgramView, ProgramViews
from maitred.gateway.observe.state import GatewayCounters, TenantRequests
from maitred.scheduler.interface import FleetView, RealTimeAdmission


class WaitingRequests(TenantRequests):
    """Requests that the tenant has now, and how long the first of them waits."""

    longest_wait_secs: float | None = None
    """Seconds since the first of those that wait has come, or null if none waits."""

    def add(self, *, is_waiting: bool, secs: float) -> None:
        """Add a request that came `secs` seconds ago."""
        if is_waiting:
            self.waiting += 1
            self.longest_wait_secs = max(self.longest_wait_secs or 0.0, round(max(0.0, secs), 3))
        else:
            self.in_flight += 1


class _Sums(NamedTuple):
    total: WaitingRequests
    classes: dict[str, WaitingRequests]
    models: dict[str, WaitingRequests]


class TenantLimits(msgspec.Struct):
    """What the tenant may do; null: no limit of its own. See `admission.tenant_policies`."""

    max_class: str
    max_in_flight: int | None
    max_queued: int | None
    weight: float | None
    budget: float | None
    """Its share of all slots (`admission.tenant_budgets`)."""
    max_programs: int | None
    """Programs that it may have; null if requests are routed one by one."""


class TenantState(msgspec.Struct):
    """Everything."""

    tenant: str
    ready: bool
    """Whether a backend is up."""
    mode: str
    """The mode of admission."""
    in_flight: int
    waiting: int
    classes: dict[str, WaitingRequests]
    """By class; all of them."""
    models: dict[str, WaitingRequests]
    """By model; those with requests of the tenant."""
    limits: TenantLimits
    refused: dict[str, int] | None
    """Requests that the gateway has answered with an error, by its code, since it started; null if those of this tenant are not
    counted by themselves (`tenant_metric_top_n`)."""
    parked_body_bytes: int
    """Bytes that the bodies of all requests hold, of `max_parked_body_bytes`: when these are used up, it gets 503."""
    programs: dict[str, ProgramView] | None
    """As `/programs` lists them; null if requests are routed one by one."""


_LEASES_IN_STEP: Final = 500
_CLASSES: Final = tuple(sorted(PriorityClass, reverse=True))


class TenantViews:
    """Makes the views of the tenants of one gateway, in O(requests and programs that are here).

    Each is made in steps, in which every request is looked at once, at an instant of its own."""

    def __init__(
        self,
        admission: RealTimeAdmission,
        fleet: FleetView,
        counters: GatewayCounters,
        budget: BodyBudget,
        programs: ProgramViews | None,
    ) -> None:
        """`budget` is that of all bodies. `programs` is None if requests are routed one by one."""
        self._budget = budget
        self._admission = admission
        self._fleet = fleet
        self._counters = counters
        self._programs = programs

    def requests(self, tenant: str) -> Steps[WaitingRequests]:
        """Return in steps the requests of a tenant."""
        total, _, _ = yield from self._sums(tenant)
        return total

    def state(self, tenant: str) -> Steps[TenantState]:
        """Return in steps all that a tenant sees."""
        total, classes, models = yield from self._sums(tenant)
        programs: dict[str, ProgramView] | None = None
        if self._programs is not None:
            programs = {}
            for some in self._programs.list_programs(Viewer(tenant, Shown.OWN)):
                programs |= some
                yield
        return TenantState(
            tenant=tenant,
            ready=bool(self._fleet.healthy),
            mode=self._admission.core.config.mode,
            in_flight=total.in_flight,
            waiting=total.waiting,
            classes=classes,
            models=dict(sorted(models.items())),
            limits=self._limits(tenant),
            refused=self._counters.refusals_of(tenant),
            parked_body_bytes=self._budget.parked_bytes,
            programs=programs,
        )

    def _sums(self, tenant: str) -> Steps[_Sums]:
        """Return the requests of a tenant: all, by class and by model."""
        now, sums = self._admission.clock.now(), _Sums(WaitingRequests(), {c.label: WaitingRequests() for c in _CLASSES}, {})
        for number, lease in enumerate([*self._admission.leases], 1):
            request = lease.request
            if request.tenant == tenant:
                of_model = sums.models.setdefault(request.model, WaitingRequests())
                for requests in (sums.total, sums.classes[request.priority_class.label], of_model):
                    requests.add(is_waiting=lease.is_waiting, secs=to_seconds(now - request.arrival))
            if not number % _LEASES_IN_STEP:
                yield
        return sums

    def _limits(self, tenant: str) -> TenantLimits:
        config = self._admission.core.config
        policy = config.tenant_policies.get(tenant, TenantPolicy())
        return TenantLimits(
            max_class=config.class_cap(tenant).label,
            max_in_flight=policy.max_in_flight,
            max_queued=policy.max_queued,
            weight=policy.weight,
            budget=config.tenant_budgets.get(tenant),
            max_programs=None if self._programs is None else self._programs.max_programs_per_tenant,
        )
