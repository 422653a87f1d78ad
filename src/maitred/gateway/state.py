"""What the gateway looks like now: for /maitred/state, /ready, metrics and tests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maitred.admission import Admission, End
from maitred.gateway.fleet import Backend
from maitred.request import PriorityClass


class ClassState(msgspec.Struct):
    """One class, over all pools. All counts are requests; from `admitted` on they only grow."""

    waiting: int = 0
    in_flight: int = 0
    admitted: int = 0
    completed: int = 0
    failed: int = 0
    client_gone: int = 0
    """Left while it held a slot."""
    cancelled: int = 0
    """Left while it waited for one."""
    queue_full: int = 0
    queue_timeout: int = 0
    rejected: int = 0
    """queue_full + queue_timeout"""


class PoolState(msgspec.Struct):
    capacity: int
    in_flight: int
    waiting: int


class BackendState(msgspec.Struct):
    url: str
    healthy: bool
    in_flight: int
    models: list[str]
    problem: str


class GatewayState(msgspec.Struct):
    ready: bool
    capacity: int
    in_flight: int
    waiting: int
    classes: dict[str, ClassState]
    pools: dict[str, PoolState]
    """By model."""
    backends: list[BackendState]
    decision_log_failed: bool
    """Whether decisions are recorded no more, though they should be."""


def observe(core: Admission, backends: Sequence[Backend], *, decision_log_failed: bool) -> GatewayState:
    """Sum up the books."""
    classes = {c.label: ClassState() for c in reversed(PriorityClass)}
    pools: dict[str, PoolState] = {}
    for name in core.pools:
        view = core.view(name)
        pools[name] = PoolState(view.capacity, view.in_flight, view.waiting)
        for priority_class, books in view.classes.items():
            total = classes[priority_class.label]
            total.waiting += books.waiting
            total.in_flight += books.in_flight
            total.admitted += books.admitted
            total.completed += books.ended[End.DRAINED]
            total.failed += books.ended[End.FAILED]
            total.client_gone += books.ended[End.CLIENT_GONE]
            total.cancelled += books.cancelled
            total.queue_full += books.queue_full
            total.queue_timeout += books.queue_timeout
            total.rejected += books.queue_full + books.queue_timeout
    return GatewayState(
        ready=any(backend.healthy for backend in backends),
        capacity=sum(pool.capacity for pool in pools.values()),
        in_flight=sum(pool.in_flight for pool in pools.values()),
        waiting=sum(pool.waiting for pool in pools.values()),
        classes=classes,
        pools=pools,
        backends=[BackendState(b.url, b.healthy, b.in_flight, list(b.models), b.problem) for b in backends],
        decision_log_failed=decision_log_failed,
    )
