"""What holds of a pool with classes after every event. For tests: O(n)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from maitred.admission.rules import LANES
from maitred.admission.ticket import State

if TYPE_CHECKING:
    from maitred.admission.class_pool import ClassPool


def problems(pool: ClassPool) -> Iterator[str]:
    """What is wrong with the books of such a pool, if anything is."""
    yield from _of_slots(pool)
    if pool.waiting != sum(map(len, pool.queues)) + pool.awaiting.count:
        yield f"{pool.waiting} counted as waiting, but queues differ"
    if pool.awaiting.count != sum(map(len, pool.awaiting.lanes)):
        yield f"{pool.awaiting.count} counted as awaiting a victim, but lanes differ"
    if not pool.promotions.within_bounds:
        yield "more promotions than their share"
    head = pool.next_in_order() if pool.open_at(pool.clock) else None
    if head is not None:
        yield f"{head} waits while a slot is free for it"
    for lane in LANES:
        yield from _of_lane(pool, lane)


def _of_slots(pool: ClassPool) -> Iterator[str]:
    slots = pool.slots
    if slots.used != sum(slots.in_flight) or min(slots.in_flight) < 0:
        yield f"{slots.used} used, but in flight {slots.in_flight}"
    kept = 0 if pool.rules.keeps_exact_fit else slots.unit
    if sum(slots.reserved) > max(0, slots.capacity - kept):
        yield f"reservations {slots.reserved} leave nothing of {slots.capacity}"


def _of_lane(pool: ClassPool, lane: int) -> Iterator[str]:
    for ticket in pool.queues[lane]:
        if ticket.state is not State.QUEUED or ticket.lane != lane:
            yield f"{ticket} in the queue of lane {lane} does not queue there"
    for ticket in pool.awaiting.lanes[lane].values():
        if ticket.state is not State.AWAITING:
            yield f"{ticket} awaits no victim"
    for ticket in pool.takeable.lanes[lane].values():
        if ticket.state is not State.ADMITTED or ticket.promoted or ticket.retried:
            yield f"{ticket} cannot be a victim"
