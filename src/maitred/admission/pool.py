"""Pool: the slots of one model and the queues before them.

A newcomer is admitted if a slot is free for its class and nobody of its own or a higher class waits; else it queues; else,
the queue being full, it is rejected. Whenever slots may have become free, waiters are admitted in strict order of class,
and in order of arrival inside a class, until no slot is free for any of them. So after every event:

    nobody waits while a slot is free for his class
"""

from __future__ import annotations

from collections.abc import Iterator

from maitred.admission.books import ClassView, PoolView, Totals
from maitred.admission.config import AdmissionConfig
from maitred.admission.queues import ClassQueue
from maitred.admission.slots import CLASSES, MOST_URGENT_FIRST, Slots, desired, effective
from maitred.admission.ticket import Event, State, Ticket
from maitred.admission.vocabulary import Action, End, Reason
from maitred.decisions import Decision
from maitred.errors import InvariantError
from maitred.request import PriorityClass
from maitred.units import Micros, from_seconds


class Pool:
    """One model's slots and queues. Its core finds the tickets and tells the time."""

    def __init__(self, name: str, config: AdmissionConfig) -> None:
        self.name = name
        self.slots = Slots()
        self.queues = [ClassQueue() for _ in CLASSES]
        self.totals = [Totals() for _ in CLASSES]
        self.waiting = 0
        self.configure(config)

    # What changes the room there is: `dispatch` is due after these two.

    def configure(self, config: AdmissionConfig) -> None:
        """Those who wait keep their places, and get the new timeout."""
        self._config = config
        for c in CLASSES:
            self.queues[c].size = config.of(c).queue_size
            self.queues[c].timeout = from_seconds(config.of(c).queue_timeout_secs)
        self.resize(self.slots.capacity)

    def resize(self, capacity: int) -> None:
        """Reservations follow the capacity."""
        self.slots.capacity = capacity
        self.slots.reserved = effective(self._wishes(), capacity)

    def _wishes(self) -> list[int]:
        return [desired(self._config.of(c), self.slots.capacity) for c in CLASSES]

    # Coming, leaving, and who is next.

    def enter(self, ticket: Ticket, now: Micros) -> Decision:
        """A newcomer: admitted, queued or rejected."""
        k = ticket.priority_class
        ticket.submitted_at = now
        behind = self.waiting > 0 and self._somebody_waits(k)
        if not behind and self.slots.free(k):
            decision = self._admit(ticket, now)
        elif self.queues[k].full:
            ticket.on(Event.REJECT)
            self.totals[k].queue_full += 1
            decision = Decision(now, ticket.id, Action.REJECT, Reason.QUEUE_FULL)
        else:
            ticket.on(Event.QUEUE)
            self.queues[k].push(ticket)
            self.waiting += 1
            decision = Decision(now, ticket.id, Action.QUEUE, Reason.BEHIND_QUEUE if behind else self._obstacle())
        self.totals[k].arrived += 1
        return decision

    def _somebody_waits(self, k: PriorityClass) -> bool:
        return any(queue.head is not None for queue in self.queues[k:])

    def _obstacle(self) -> Reason:
        if not self.slots.capacity:
            return Reason.NO_CAPACITY
        return Reason.NO_SLOT if self.slots.used >= self.slots.capacity else Reason.HELD_BY_RESERVATION

    def leave(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        """It is released: from the queue, where nobody gains by it, or from its slot, which passes on."""
        queued = ticket.state is State.QUEUED
        ticket.on(Event.RELEASE)
        totals = self.totals[ticket.priority_class]
        if queued:
            self._unqueue(ticket)
            totals.cancelled += 1
            return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE)]
        self.slots.give_back(ticket.priority_class)
        totals.ended[end] += 1
        return self.dispatch(now)

    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiters, most urgent class first, while slots are free for them."""
        admitted: list[Decision] = []
        if not self.waiting or self.slots.used >= self.slots.capacity:
            return admitted
        for k in MOST_URGENT_FIRST:
            queue = self.queues[k]
            while queue.head is not None and self.slots.free(k):
                ticket = queue.head
                self._unqueue(ticket)
                admitted.append(self._admit(ticket, now))
        return admitted

    def _admit(self, ticket: Ticket, now: Micros) -> Decision:
        ticket.on(Event.ADMIT)
        self.slots.take(ticket.priority_class)
        self.totals[ticket.priority_class].admitted += 1
        return Decision(now, ticket.id, Action.ADMIT, Reason.SLOT_FREE)

    def _unqueue(self, ticket: Ticket) -> None:
        self.queues[ticket.priority_class].remove(ticket)
        self.waiting -= 1

    # Time.

    def next_deadline(self) -> Micros | None:
        """When the first waiter will have waited too long; None when nobody waits."""
        if not self.waiting:
            return None
        return min(self.deadline(queue.head) for queue in self.queues if queue.head is not None)

    def deadline(self, ticket: Ticket) -> Micros:
        """When a waiter will have waited too long."""
        return ticket.submitted_at + self.queues[ticket.priority_class].timeout

    def due(self, now: Micros) -> Iterator[tuple[Micros, Ticket]]:
        """Who has waited too long by `now`, and since when: most urgent class first, oldest first."""
        for k in MOST_URGENT_FIRST:
            queue = self.queues[k]
            for ticket in queue:
                if self.deadline(ticket) > now:
                    break
                yield self.deadline(ticket), ticket

    def time_out(self, ticket: Ticket, now: Micros) -> Decision:
        ticket.on(Event.REJECT)
        self._unqueue(ticket)
        self.totals[ticket.priority_class].queue_timeout += 1
        return Decision(now, ticket.id, Action.REJECT, Reason.QUEUE_TIMEOUT)

    # Looking.

    def view(self) -> PoolView:
        wishes = self._wishes()
        return PoolView(
            self.slots.capacity, self.slots.used, self.waiting, {c: self._class_view(c, wishes[c]) for c in MOST_URGENT_FIRST}
        )

    def _class_view(self, c: PriorityClass, wish: int) -> ClassView:
        totals = self.totals[c]
        return ClassView(
            waiting=len(self.queues[c]),
            queue_size=self.queues[c].size,
            in_flight=self.slots.in_flight[c],
            reserved=self.slots.reserved[c],
            desired=wish,
            arrived=totals.arrived,
            admitted=totals.admitted,
            queue_full=totals.queue_full,
            queue_timeout=totals.queue_timeout,
            cancelled=totals.cancelled,
            ended=dict(totals.ended),
        )

    def check(self) -> None:
        """Raises InvariantError if a slot or a request was lost, or somebody waits for nothing."""
        slots = self.slots
        if slots.used != sum(slots.in_flight) or min(slots.in_flight) < 0:
            raise InvariantError(f"pool {self.name!r}: {slots.used} slots used, but in flight {slots.in_flight}")
        if slots.capacity and sum(slots.reserved) >= slots.capacity:
            raise InvariantError(f"pool {self.name!r}: reservations {slots.reserved} leave none of {slots.capacity} slots")
        if self.waiting != sum(len(queue) for queue in self.queues):
            raise InvariantError(f"pool {self.name!r}: {self.waiting} counted as waiting, but queues differ")
        for c in CLASSES:
            self._check_class(c)

    def _check_class(self, c: PriorityClass) -> None:
        queue = self.queues[c]
        if queue.head is not None and self.slots.free(c):
            raise InvariantError(f"pool {self.name!r}: {queue.head} waits while a slot is free for it")
        since = [ticket.submitted_at for ticket in queue]
        if since != sorted(since) or any(ticket.state is not State.QUEUED for ticket in queue):
            raise InvariantError(f"pool {self.name!r}: the queue of {c.label} is out of order")
        if not self.totals[c].balance(len(queue), self.slots.in_flight[c]):
            raise InvariantError(f"pool {self.name!r}: {c.label} requests do not add up")
