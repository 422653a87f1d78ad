"""What the gateway looks like now: for /maitred/state, /health, /ready, metrics and tests.

Sums up what the gateway looks like: the core's books, the fleet, and who is here; all at one instant, so that sums hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from maitred.admission import Admission, ClassView, PoolView, ReleaseReason
from maitred.admission.config import MAX_SLOTS
from maitred.core.request import PriorityClass
from maitred.gateway.capacity import CapacityController
from maitred.gateway.counters import GatewayCounters
from maitred.gateway.driver import RealTimeAdmission
from maitred.gateway.fleet import Backend, BackendFleet, SlotSource


class ClassState(msgspec.Struct):
    """One class, over all pools. All counts are requests; from `arrived` on they only grow."""

    waiting: int = 0
    in_flight: int = 0
    queue_size: int = 0
    """How many may wait, in sum."""
    reserved: int = 0
    """Slots, after scaling down."""
    desired: int = 0
    """Slots, as configured."""
    pressure: float = 0.0
    """0 to 1, of the pool where it is highest."""
    arrived: int = 0
    admitted: int = 0
    completed: int = 0
    failed: int = 0
    client_gone: int = 0
    """Left while it held a slot."""
    preempted: int = 0
    """Lost its slot for good."""
    cancelled: int = 0
    """Left while it waited for one."""
    queue_full: int = 0
    tenant_queue_full: int = 0
    queue_timeout: int = 0
    refused: dict[str, int] = {}
    """By admission policies and flow control, by reason; those that came to pass."""
    rejected: int = 0
    """queue_full + tenant_queue_full + queue_timeout + the sum of refused"""
    rate_limited: int = 0
    """Not counted in `arrived`."""
    promoted: int = 0
    retried: int = 0
    preempted_by: dict[str, int] = {}
    """Victims, by the class that wanted their slot; those that were tried again as well."""


class PoolState(msgspec.Struct):
    capacity: int | None
    """Slots; null: no limit."""
    in_flight: int
    waiting: int
    reserved: dict[str, int]
    """Slots by class, after scaling down."""
    desired: dict[str, int]
    """Slots by class, as configured."""


class ModelState(msgspec.Struct):
    slots: int
    """What the healthy backends of the model offer."""
    source: SlotSource
    """How that is known."""


class BackendState(msgspec.Struct):
    url: str
    healthy: bool
    in_flight: int
    models: list[str]
    problem: str
    slots: int
    """Requests that it may have in flight, for each model."""
    source: SlotSource
    """How that is known."""


class TenantState(msgspec.Struct):
    in_flight: int = 0
    waiting: int = 0


class GatewayState(msgspec.Struct):
    ready: bool
    mode: str
    """Of admission: `off`, `legacy`, `priority` or `flow-control`."""
    config_fallback: str | None
    """Why the mode is not the configured one; null: it is."""
    capacity: int | None
    """Slots of all pools; null: no limit."""
    in_flight: int
    waiting: int
    classes: dict[str, ClassState]
    pools: dict[str, PoolState]
    """By model; one for all, `*`, in modes off and legacy."""
    models: dict[str, ModelState]
    tenants: dict[str, TenantState]
    """Those that have requests here; the last is `other` if there are many."""
    backends: list[BackendState]
    parked_body_bytes: int
    """Of all request bodies that are being read or kept."""
    decision_log_failed: bool
    """Whether decisions are recorded no more, though they should be."""


class StateSnapshots:
    def __init__(
        self, driver: RealTimeAdmission, fleet: BackendFleet, capacity: CapacityController, counts: GatewayCounters
    ) -> None:
        self._driver = driver
        self._fleet = fleet
        self._capacity = capacity
        self._counters = counts

    def take_snapshot(self, *, parked_body_bytes: int, decision_log_failed: bool) -> GatewayState:
        """O(requests that are here)."""
        core, fleet = self._driver.core, self._fleet
        pools = {name: _pool_state(core.view(name)) for name in core.pool_names}
        offered = {model: fleet.offered_slots(model) for model in fleet.known_models}
        return GatewayState(
            ready=any(backend.healthy for backend in fleet.backends),
            mode=core.config.mode,
            config_fallback=self._capacity.fallback,
            capacity=_total_capacity(pools),
            in_flight=sum(pool.in_flight for pool in pools.values()),
            waiting=sum(pool.waiting for pool in pools.values()),
            classes={c.label: state for c, state in class_states(core).items()},
            pools=pools,
            models={model: ModelState(slots.slots, slots.source) for model, slots in offered.items()},
            tenants=self._tenants(),
            backends=[self._backend(backend) for backend in fleet.backends],
            parked_body_bytes=parked_body_bytes,
            decision_log_failed=decision_log_failed,
        )

    def _tenants(self) -> dict[str, TenantState]:
        tenants: dict[str, TenantState] = {}
        for stay in self._driver.leases:
            tenant = tenants.setdefault(self._counters.tenant_label(stay.tenant), TenantState())
            tenant.waiting += stay.is_waiting
            tenant.in_flight += not stay.is_waiting
        return tenants

    def _backend(self, b: Backend) -> BackendState:
        slots = self._fleet.backend_slots(b)
        return BackendState(b.url, b.healthy, b.in_flight, list(b.models), b.problem, slots.slots, slots.source)


def class_states(core: Admission) -> dict[PriorityClass, ClassState]:
    """Return each class over all pools, most urgent first."""
    views = core.class_views()
    return {c: _class_state(views[c]) if c in views else ClassState() for c in sorted(PriorityClass, reverse=True)}


def _class_state(view: ClassView) -> ClassState:
    refused = {str(reason): n for reason, n in view.refused.items() if n}
    return ClassState(
        waiting=view.waiting,
        in_flight=view.in_flight,
        queue_size=view.queue_size,
        reserved=view.reserved,
        desired=view.desired,
        pressure=view.pressure,
        arrived=view.arrived,
        admitted=view.admitted,
        completed=view.ended[ReleaseReason.DRAINED],
        failed=view.ended[ReleaseReason.FAILED],
        client_gone=view.ended[ReleaseReason.CLIENT_GONE],
        preempted=view.ended[ReleaseReason.SLOT_PREEMPTED],
        cancelled=view.cancelled,
        queue_full=view.queue_full,
        tenant_queue_full=view.tenant_queue_full,
        queue_timeout=view.queue_timeout,
        refused=refused,
        rejected=view.queue_full + view.tenant_queue_full + view.queue_timeout + sum(refused.values()),
        rate_limited=view.rate_limited,
        promoted=view.promoted,
        retried=view.retried,
        preempted_by={c.label: victims for c, victims in view.preempted_by.items()},
    )


def _pool_state(view: PoolView) -> PoolState:
    return PoolState(
        capacity=None if view.capacity >= MAX_SLOTS else view.capacity,
        in_flight=view.in_flight,
        waiting=view.waiting,
        reserved={c.label: books.reserved for c, books in view.classes.items()},
        desired={c.label: books.desired for c, books in view.classes.items()},
    )


def _total_capacity(pools: Mapping[str, PoolState]) -> int | None:
    limits = [pool.capacity for pool in pools.values() if pool.capacity is not None]
    return sum(limits) if len(limits) == len(pools) else None
