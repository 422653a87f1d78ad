"""What holds after every event: of all pools of a core together, and of a pool with classes. For tests: O(n)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from maitred.admission.rules import LANES
from maitred.admission.tenants import TenantAccount
from maitred.admission.ticket import SLOT_HOLDING_STATES, Ticket, TicketState

if TYPE_CHECKING:
    from maitred.admission.class_pool import ClassPool
    from maitred.admission.pools import PoolDirectory


def find_violations(pools: PoolDirectory, tickets: Collection[Ticket], tenants: Iterable[TenantAccount]) -> Iterator[str]:
    """Where `tickets`, all that are here, and what is counted of them differ."""
    for name, pool in pools.by_name.items():
        yield from (f"pool {name!r}: {problem}" for problem in pool.find_violations())
        mine = [ticket for ticket in tickets if pools.by_model[ticket.pool] is pool]
        held = [ticket for ticket in mine if ticket.state in SLOT_HOLDING_STATES]
        if sum(ticket.slot_units for ticket in held) != pool.slots.in_use or len(mine) - len(held) != pool.waiting:
            yield f"pool {name!r}: tickets {mine} do not match its slots and queues"
        books = pools.counters_of(name)
        if (sum(t.in_flight for t in books), sum(t.waiting for t in books)) != (len(held), pool.waiting):
            yield f"pool {name!r}: its books do not match its slots and queues"
    if not all(totals.is_balanced() for books in pools.counters.values() for totals in books):
        yield "requests do not add up"
    for tenant in tenants:
        mine = [ticket for ticket in tickets if ticket.tenant_account is tenant]
        held = [ticket for ticket in mine if ticket.state in SLOT_HOLDING_STATES]
        if (tenant.in_flight, tenant.queued) != (len(held), len(mine) - len(held)):
            yield f"tenant {tenant.name!r}: its account does not match its requests"


def class_pool_violations(pool: ClassPool) -> Iterator[str]:
    """What is wrong with the books of such a pool, if anything is."""
    yield from _slot_violations(pool)
    waiters = pool.queues
    if pool.waiting != waiters.queued + waiters.pending_preemptors.count:
        preemptors = waiters.pending_preemptors.count
        yield f"{pool.waiting} counted as waiting, {waiters.queued} in queues and {preemptors} for victims"
    if waiters.queued != sum(map(len, waiters.lanes)):
        yield f"{waiters.queued} counted in queues, but these differ"
    if waiters.pending_preemptors.count != sum(map(len, waiters.pending_preemptors.lanes)):
        yield f"{waiters.pending_preemptors.count} counted as awaiting a victim, but lanes differ"
    if not pool.promotion_budget.is_within_bounds:
        yield "more promotions than their share"
    head = pool.priority.next_waiter() if pool.rate_allows(pool.dispatched_at) else None
    if head is not None:
        yield f"{head} waits while a slot is free for it"
    for lane in LANES:
        yield from _lane_violations(pool, lane)


def _slot_violations(pool: ClassPool) -> Iterator[str]:
    slots = pool.slots
    if slots.in_use != sum(slots.in_flight) or min(slots.in_flight) < 0:
        yield f"{slots.in_use} used, but in flight {slots.in_flight}"
    kept = 0 if pool.rules.keeps_exact_fit else slots.units_per_slot
    if sum(slots.reserved) > max(0, slots.capacity - kept):
        yield f"reservations {slots.reserved} leave nothing of {slots.capacity}"


def _lane_violations(pool: ClassPool, lane: int) -> Iterator[str]:
    for ticket in pool.queues.lanes[lane]:
        if ticket.state is not TicketState.QUEUED or ticket.lane != lane:
            yield f"{ticket} in the queue of lane {lane} does not queue there"
    for ticket in pool.queues.pending_preemptors.lanes[lane].values():
        if ticket.state is not TicketState.AWAITING:
            yield f"{ticket} awaits no victim"
    for ticket in pool.victims.lanes[lane].values():
        if ticket.state is not TicketState.ADMITTED or ticket.promoted or ticket.retried:
            yield f"{ticket} cannot be a victim"
