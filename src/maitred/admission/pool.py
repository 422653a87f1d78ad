"""Pool: slots, who holds them, and who waits; as the core sees it, whatever the rules are by which one enters.

Its core finds the tickets and tells the time. Here is what all kinds of pools have in common: their books. What differs is who
enters, where one waits, and who is next: `class_pool` goes by slots, `flow_control` by how loaded the instances are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from maitred.admission.books import PoolView, Totals, class_view
from maitred.admission.bucket import TokenBucket
from maitred.admission.forecast import Forecast
from maitred.admission.queues import Turns
from maitred.admission.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.slots import Slots
from maitred.admission.ticket import Event, State, Ticket
from maitred.admission.vocabulary import Action, End, Reason
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.request import RequestId
from maitred.units import Micros

_ADMIT, _REJECT = Event.ADMIT, Event.REJECT  # members of enums are slow to look up
_ADMITTED, _VICTIM = State.ADMITTED, State.VICTIM
_ADMISSION, _REJECTION = Action.ADMIT, Action.REJECT
_QUEUE_TIMEOUT, _QUEUE_FULL = Reason.QUEUE_TIMEOUT, Reason.QUEUE_FULL
Look: TypeAlias = Callable[[str, Micros], FleetLoad]
"""How loaded the instances behind a pool (by its name) are at this moment, which is told for the log."""


class Victims(Protocol):
    """Those in flight who may lose their slots."""

    def add(self, ticket: Ticket) -> None:
        """It holds a slot, and may not be one of them."""
        ...

    def discard(self, ticket: Ticket) -> None:
        """It is none of them any more, if it was."""
        ...


class Pool(ABC):
    """The slots of one model, or of all."""

    takeable: Victims

    def __init__(self, name: str, rules: PoolRules, turns: Turns) -> None:
        self.name = name
        self.rules = rules
        self.slots = Slots()
        self.forecasts = [Forecast() for _ in LANES]
        self.waiting = 0
        """All who do not hold a slot yet."""
        self._turns = turns
        self._bucket: TokenBucket | None = None

    def resize(self, capacity: int) -> None:
        """Reservations follow the capacity (slots). `dispatch` is due then."""
        self.slots.resize(capacity if self.rules.capacity is None else self.rules.capacity, self.rules)

    # Coming and leaving.

    @abstractmethod
    def enter(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """A newcomer; the last decision is on it. Those before may concern others."""

    @abstractmethod
    def leave(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        """It is released: from the queue, or from its slot, which passes on. A victim that is tried again has not left."""

    @abstractmethod
    def adopt(self, ticket: Ticket) -> None:
        """A request that other rules let in, in the state in which it is; those who queue, in the order they stand in."""

    def follow(self, former: Pool) -> None:
        """It takes the place of `former`: what is known of the speed of its queues, and what the rate has let in, stays."""
        self.forecasts[:] = former.forecasts
        if former._bucket is not None and (former._bucket.rate, former._bucket.burst) == (self.rules.rate, self.rules.burst):
            self._bucket = former._bucket

    @abstractmethod
    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiters, as far as the rules let them in now."""

    @abstractmethod
    def unblock(self, tenant: str) -> None:
        """The tenant may be below its limit again. `dispatch` is due then."""

    # Time.

    @abstractmethod
    def fire(self, now: Micros) -> list[Decision]:
        """What is due at `now` and not before, and what follows from it."""

    @abstractmethod
    def first_due(self, ticket: Ticket) -> Micros | None:
        """When time first changes something for one who has just come to wait; None: never."""

    @abstractmethod
    def soon(self) -> Micros | None:
        """When time may let in somebody who waits; None: never."""

    @abstractmethod
    def next_due(self) -> Micros | None:
        """When time alone changes something here; None: never."""

    # Looking.

    def view(self, books: Sequence[Totals]) -> PoolView:
        """What it looks like now, with its `books` by class."""
        slots, unit, classes = self.slots, self.slots.unit, {}
        for c in MOST_URGENT_FIRST:
            lane, totals = self.rules.lane_of[c], books[c]
            classes[c] = class_view(
                totals,
                queue_size=self.rules.lanes[lane].queue_size,
                reserved=slots.reserved[c] // unit,
                desired=slots.wanted[c] // unit,
                pressure=self.pressure(lane, totals.waiting),
                errors=self.forecasts[c].errors,  # where all share a lane, they are its class's
            )
        in_flight = sum(totals.in_flight for totals in books)
        return PoolView(slots.capacity // unit, in_flight, self.waiting, classes)

    def pressure(self, lane: int, waiting: int) -> float:
        """SMG's measure, 0 to 1: the fuller of its queue and of what it may use beyond its reservation."""
        slots, size = self.slots, self.rules.lanes[lane].queue_size
        above = max(0, slots.in_flight[lane] - slots.reserved[lane])
        reach = max(1, slots.capacity - sum(slots.reserved[lane + 1 :]))
        return min(1.0, max(waiting / size if size else 0.0, above / reach))

    @abstractmethod
    def problems(self) -> Iterable[str]:
        """What is wrong with its books, if anything is. O(n)."""

    # The books.

    def _admit(self, ticket: Ticket, reason: Reason, now: Micros, other: RequestId | None = None) -> Decision:
        ticket.on(_ADMIT)
        ticket.turn = self._turns.last()
        ticket.admitted_at = now
        ticket.totals.admitted += 1
        self._hold(ticket)
        if ticket.share is not None:
            ticket.share.in_flight += 1
        if self._bucket is not None:
            self._bucket.take(now)
        return Decision(now, ticket.id, _ADMISSION, reason, other)

    def _hold(self, ticket: Ticket) -> None:
        self.slots.take(ticket.lane, ticket.charge)
        ticket.totals.in_flight += 1
        if ticket.budget is not None:
            ticket.budget.in_flight += 1
        self.takeable.add(ticket)

    def _release(self, ticket: Ticket, now: Micros) -> None:
        """What it held is free."""
        self.slots.give_back(ticket.lane, ticket.charge)
        if ticket.state is _ADMITTED:
            self.takeable.discard(ticket)
        ticket.totals.in_flight -= 1
        held = now - ticket.admitted_at
        ticket.totals.slot_hold.observe(held)
        if ticket.state is _VICTIM:
            ticket.totals.wasted.observe(held)
        if ticket.budget is not None:
            ticket.budget.in_flight -= 1
        if ticket.share is not None:
            ticket.share.in_flight -= 1
            self.unblock(ticket.share.name)

    def _wait(self, ticket: Ticket) -> None:
        self.waiting += 1
        ticket.totals.waiting += 1
        if ticket.share is not None:
            ticket.share.queued += 1

    def _wait_no_more(self, ticket: Ticket) -> None:
        self.waiting -= 1
        ticket.totals.waiting -= 1
        if ticket.share is not None:
            ticket.share.queued -= 1

    def _reject(self, ticket: Ticket, reason: Reason, now: Micros, other: RequestId | None = None) -> Decision:
        ticket.on(_REJECT)
        totals = ticket.totals
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
