"""Sums up what the gateway looks like: the core's books, the fleet, and who is here; all at one instant, so that sums hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from maitred.admission import Admission, ClassView, End, PoolView
from maitred.admission.config import MOST_SLOTS
from maitred.gateway.capacity import Capacity
from maitred.gateway.counts import Counts
from maitred.gateway.driver import Driver
from maitred.gateway.fleet import Backend, Fleet
from maitred.gateway.state import BackendState, ClassState, GatewayState, ModelState, PoolState, TenantState
from maitred.request import PriorityClass


class Observer:
    def __init__(self, driver: Driver, fleet: Fleet, capacity: Capacity, counts: Counts) -> None:
        self._driver = driver
        self._fleet = fleet
        self._capacity = capacity
        self._counts = counts

    def state(self, *, parked_body_bytes: int, decision_log_failed: bool) -> GatewayState:
        """O(requests that are here)."""
        core, fleet = self._driver.core, self._fleet
        pools = {name: _pool(core.view(name)) for name in core.pools}
        offered = {model: fleet.offered(model) for model in fleet.models}
        return GatewayState(
            ready=any(backend.healthy for backend in fleet.backends),
            mode=core.config.mode,
            config_fallback=self._capacity.fallback,
            capacity=_total(pools),
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
        for stay in self._driver.stays:
            tenant = tenants.setdefault(self._counts.tenant_label(stay.tenant), TenantState())
            tenant.waiting += stay.waiting
            tenant.in_flight += not stay.waiting
        return tenants

    def _backend(self, b: Backend) -> BackendState:
        slots = self._fleet.slots_of(b)
        return BackendState(b.url, b.healthy, b.in_flight, list(b.models), b.problem, slots.slots, slots.source)


def class_states(core: Admission) -> dict[PriorityClass, ClassState]:
    """Each class over all pools, most urgent first."""
    classes = {c: ClassState() for c in sorted(PriorityClass, reverse=True)}
    for pool in core.pools:
        for c, books in core.view(pool).classes.items():
            _add(classes[c], books)
    return classes


def _add(total: ClassState, books: ClassView) -> None:
    for name in _SUMMED:
        setattr(total, name, getattr(total, name) + getattr(books, name))
    total.pressure = max(total.pressure, books.pressure)
    total.completed += books.ended[End.DRAINED]
    total.failed += books.ended[End.FAILED]
    total.client_gone += books.ended[End.CLIENT_GONE]
    total.preempted += books.ended[End.PREEMPTED]
    total.rejected += books.queue_full + books.tenant_queue_full + books.queue_timeout + sum(books.refused.values())
    for reason, n in books.refused.items():
        if n:
            total.refused[str(reason)] = total.refused.get(str(reason), 0) + n
    for c, victims in books.preempted_by.items():
        total.preempted_by[c.label] = total.preempted_by.get(c.label, 0) + victims


_SUMMED: Final = (
    *("waiting", "in_flight", "queue_size", "reserved", "desired", "arrived", "admitted", "cancelled", "queue_full"),
    *("tenant_queue_full", "queue_timeout", "rate_limited", "promoted", "retried"),
)


def _pool(view: PoolView) -> PoolState:
    return PoolState(
        capacity=None if view.capacity >= MOST_SLOTS else view.capacity,
        in_flight=view.in_flight,
        waiting=view.waiting,
        reserved={c.label: books.reserved for c, books in view.classes.items()},
        desired={c.label: books.desired for c, books in view.classes.items()},
    )


def _total(pools: Mapping[str, PoolState]) -> int | None:
    limits = [pool.capacity for pool in pools.values() if pool.capacity is not None]
    return sum(limits) if len(limits) == len(pools) else None
