"""Pool: slots, who holds them, and who waits; as the core sees it, whatever the rules are by which one enters.

Its core finds the tickets and tells the time. Here is what all kinds of pools have in common: their books. What differs is who
enters, where one waits, and who is next: `class_pool` goes by slots, `flow_control` by how loaded the instances are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from maitred.admission.counters import ClassCounters, ClassView, PoolView
from maitred.admission.enums import Action, Reason, ReleaseReason
from maitred.admission.queues import SequenceNumbers
from maitred.admission.rate_limit import TokenBucket
from maitred.admission.retry_after import RetryAfterEstimator
from maitred.admission.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.slots import Slots
from maitred.admission.ticket import Ticket, TicketEvent, TicketState
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.request import RequestId
from maitred.core.units import Micros

_ADMIT, _REJECT = TicketEvent.ADMIT, TicketEvent.REJECT  # members of enums are slow to look up
_ADMITTED, _VICTIM = TicketState.ADMITTED, TicketState.VICTIM
_ADMISSION, _REJECTION = Action.ADMIT, Action.REJECT
_QUEUE_TIMEOUT, _QUEUE_FULL = Reason.QUEUE_TIMEOUT, Reason.QUEUE_FULL
LoadProbe: TypeAlias = Callable[[str, Micros], FleetLoad]
"""How loaded the instances behind a pool (by its name) are at this moment, which is told for the log."""


class VictimSet(Protocol):
    """Those in flight who may lose their slots."""

    def add(self, ticket: Ticket) -> None:
        """It holds a slot, and may not be one of them."""
        ...

    def discard(self, ticket: Ticket) -> None:
        """It is none of them any more, if it was."""
        ...


class SlotPool(ABC):
    """The slots of one model, or of all."""

    victims: VictimSet

    def __init__(self, name: str, rules: PoolRules, sequence_numbers: SequenceNumbers) -> None:
        self.name = name
        self.rules = rules
        self.slots = Slots()
        self.retry_estimators = [RetryAfterEstimator() for _ in LANES]
        self.waiting = 0
        """All who do not hold a slot yet."""
        self._sequence_numbers = sequence_numbers
        self._bucket: TokenBucket | None = None

    def resize(self, capacity: int) -> None:
        """Reservations follow the capacity (slots). `dispatch` is due then."""
        self.slots.resize(capacity if self.rules.capacity is None else self.rules.capacity, self.rules)

    # Coming and leaving.

    @abstractmethod
    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """A newcomer; the last decision is on it. Those before may concern others."""

    @abstractmethod
    def release(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        """It is released: from the queue, or from its slot, which passes on. A victim that is tried again has not left."""

    @abstractmethod
    def adopt(self, ticket: Ticket) -> None:
        """A request that other rules let in, in the state in which it is; those who queue, in the order they stand in."""

    def inherit_from(self, previous: SlotPool) -> None:
        """It takes the place of `former`: what is known of the speed of its queues, and what the rate has let in, stays."""
        self.retry_estimators[:] = previous.retry_estimators
        if previous._bucket is not None and (previous._bucket.rate, previous._bucket.burst) == (
            self.rules.rate,
            self.rules.burst,
        ):
            self._bucket = previous._bucket

    @abstractmethod
    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiters, as far as the rules let them in now."""

    @abstractmethod
    def unblock_tenant(self, tenant: str) -> None:
        """The tenant may be below its limit again. `dispatch` is due then."""

    # Time.

    @abstractmethod
    def advance(self, now: Micros) -> list[Decision]:
        """What is due at `now` and not before, and what follows from it."""

    @abstractmethod
    def deadline_of(self, ticket: Ticket) -> Micros | None:
        """When time first changes something for one who has just come to wait; None: never."""

    @abstractmethod
    def next_admission_at(self) -> Micros | None:
        """When time may let in somebody who waits; None: never."""

    @abstractmethod
    def next_deadline(self) -> Micros | None:
        """When time alone changes something here; None: never."""

    # Looking.

    def view(self, counters: Sequence[ClassCounters]) -> PoolView:
        """What it looks like now, with its `books` by class."""
        slots, unit, classes = self.slots, self.slots.units_per_slot, {}
        for c in MOST_URGENT_FIRST:
            lane, view = self.rules.lane_of[c], ClassView()
            view.merge(counters[c])
            view.queue_size = self.rules.lanes[lane].queue_size
            view.reserved = slots.reserved[c] // unit
            view.desired = slots.desired[c] // unit
            view.pressure = self.pressure(lane, view.waiting)
            view.retry_after_error.merge(self.retry_estimators[c].errors)  # where all share a lane, they are its class's
            classes[c] = view
        in_flight = sum(view.in_flight for view in classes.values())
        return PoolView(slots.capacity // unit, in_flight, self.waiting, classes)

    def pressure(self, lane: int, waiting: int) -> float:
        """SMG's measure, 0 to 1: the fuller of its queue and of what it may use beyond its reservation."""
        slots, size = self.slots, self.rules.lanes[lane].queue_size
        above = max(0, slots.in_flight[lane] - slots.reserved[lane])
        reach = max(1, slots.capacity - sum(slots.reserved[lane + 1 :]))
        return min(1.0, max(waiting / size if size else 0.0, above / reach))

    @abstractmethod
    def find_violations(self) -> Iterable[str]:
        """What is wrong with its books, if anything is. O(n)."""

    # The books.

    def _admit(self, ticket: Ticket, reason: Reason, now: Micros, other: RequestId | None = None) -> Decision:
        ticket.transition(_ADMIT)
        ticket.sequence_number = self._sequence_numbers.next_back()
        ticket.admitted_at = now
        ticket.counters.admitted += 1
        self._take_slot(ticket)
        if ticket.tenant_account is not None:
            ticket.tenant_account.in_flight += 1
        if self._bucket is not None:
            self._bucket.take_token(now)
        return Decision(now, ticket.id, _ADMISSION, reason, other)

    def _take_slot(self, ticket: Ticket) -> None:
        self.slots.take(ticket.lane, ticket.slot_units)
        ticket.counters.in_flight += 1
        if ticket.budget_account is not None:
            ticket.budget_account.in_flight += 1
        self.victims.add(ticket)

    def _release_slot(self, ticket: Ticket, now: Micros) -> None:
        """What it held is free."""
        self.slots.give_back(ticket.lane, ticket.slot_units)
        if ticket.state is _ADMITTED:
            self.victims.discard(ticket)
        ticket.counters.in_flight -= 1
        held = now - ticket.admitted_at
        ticket.counters.slot_hold.observe(held)
        if ticket.state is _VICTIM:
            ticket.counters.wasted_slot_time.observe(held)
        if ticket.budget_account is not None:
            ticket.budget_account.in_flight -= 1
        if ticket.tenant_account is not None:
            ticket.tenant_account.in_flight -= 1
            self.unblock_tenant(ticket.tenant_account.name)

    def _start_waiting(self, ticket: Ticket) -> None:
        self.waiting += 1
        ticket.counters.waiting += 1
        if ticket.tenant_account is not None:
            ticket.tenant_account.queued += 1

    def _stop_waiting(self, ticket: Ticket) -> None:
        self.waiting -= 1
        ticket.counters.waiting -= 1
        if ticket.tenant_account is not None:
            ticket.tenant_account.queued -= 1

    def _reject(self, ticket: Ticket, reason: Reason, now: Micros, other: RequestId | None = None) -> Decision:
        ticket.transition(_REJECT)
        totals = ticket.counters
        if reason is _QUEUE_TIMEOUT:
            totals.queue_timeout += 1
        elif reason is _QUEUE_FULL:
            totals.queue_full += 1
        elif reason is Reason.TENANT_QUEUE_FULL:
            totals.tenant_queue_full += 1
        else:
            totals.refused[reason] += 1
        return Decision(now, ticket.id, _REJECTION, reason, other, self._retry_after(ticket, now))

    @abstractmethod
    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros | None:
        """After how long a rejected request should be sent again; None: nobody knows."""
