"""What holds after every event: of all pools of a core together, and of a pool with classes. For tests: O(n)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from maitred.admission.rules import LANES
from maitred.admission.tenants import Tenant
from maitred.admission.ticket import HOLDING, State, Ticket

if TYPE_CHECKING:
    from maitred.admission.class_pool import ClassPool
    from maitred.admission.pools import Pools


def imbalances(pools: Pools, tickets: Collection[Ticket], tenants: Iterable[Tenant]) -> Iterator[str]:
    """Where `tickets`, all that are here, and what is counted of them differ."""
    for name, pool in pools.by_name.items():
        yield from (f"pool {name!r}: {problem}" for problem in pool.problems())
        mine = [ticket for ticket in tickets if pools.of_model[ticket.pool] is pool]
        held = [ticket for ticket in mine if ticket.state in HOLDING]
        if sum(ticket.charge for ticket in held) != pool.slots.used or len(mine) - len(held) != pool.waiting:
            yield f"pool {name!r}: tickets {mine} do not match its slots and queues"
        books = pools.books_of(name)
        if (sum(t.in_flight for t in books), sum(t.waiting for t in books)) != (len(held), pool.waiting):
            yield f"pool {name!r}: its books do not match its slots and queues"
    if not all(totals.balance() for books in pools.books.values() for totals in books):
        yield "requests do not add up"
    for tenant in tenants:
        mine = [ticket for ticket in tickets if ticket.share is tenant]
        held = [ticket for ticket in mine if ticket.state in HOLDING]
        if (tenant.in_flight, tenant.queued) != (len(held), len(mine) - len(held)):
            yield f"tenant {tenant.name!r}: its account does not match its requests"


def problems(pool: ClassPool) -> Iterator[str]:
    """What is wrong with the books of such a pool, if anything is."""
    yield from _of_slots(pool)
    waiters = pool.waiters
    if pool.waiting != waiters.queued + waiters.awaiting.count:
        yield f"{pool.waiting} counted as waiting, {waiters.queued} in queues and {waiters.awaiting.count} for victims"
    if waiters.queued != sum(map(len, waiters.queues)):
        yield f"{waiters.queued} counted in queues, but these differ"
    if waiters.awaiting.count != sum(map(len, waiters.awaiting.lanes)):
        yield f"{waiters.awaiting.count} counted as awaiting a victim, but lanes differ"
    if not pool.promotions.within_bounds:
        yield "more promotions than their share"
    head = pool.precedence.next_in_order() if pool.open_at(pool.clock) else None
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
    for ticket in pool.waiters.queues[lane]:
        if ticket.state is not State.QUEUED or ticket.lane != lane:
            yield f"{ticket} in the queue of lane {lane} does not queue there"
    for ticket in pool.waiters.awaiting.lanes[lane].values():
        if ticket.state is not State.AWAITING:
            yield f"{ticket} awaits no victim"
    for ticket in pool.takeable.lanes[lane].values():
        if ticket.state is not State.ADMITTED or ticket.promoted or ticket.retried:
            yield f"{ticket} cannot be a victim"
