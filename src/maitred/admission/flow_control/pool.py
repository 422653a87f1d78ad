"""A pool with flow control: requests wait in front of the instances while these are saturated, and not inside them.

Whoever comes joins the line of his band, and then as many go in as the instances can carry: the detector says how saturated
they are, the gate who may go in at that saturation and who is next, and the dispatcher whose gate it is the turn of. One who is
let in counts for the saturation at once, before any instance shows him.

Who finds his band full, or the queue, is rejected; or takes the place of the newest sheddable waiter, who is. Who waits too
long is rejected. And if all of that is not enough for one who is not sheddable, sheddable work in flight may be stopped.

At one instant inputs come before ticks: who arrives at a tick may go in with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from maitred.admission.flow_control.dispatcher import Dispatcher
from maitred.admission.flow_control.gate import Gate
from maitred.admission.flow_control.victims import Sheddable
from maitred.admission.pool import Pool
from maitred.admission.queues import Turns
from maitred.admission.rules import SHARED, PoolRules
from maitred.admission.ticket import HOLDING, Event, State, Ticket
from maitred.admission.vocabulary import Action, End, Reason
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.units import SECOND, Micros

_NEW, _QUEUED = State.NEW, State.QUEUED  # members of enums are slow to look up
_VICTIM, _LEFT = State.VICTIM, State.LEFT
_QUEUE, _RELEASE = Event.QUEUE, Event.RELEASE
_SLOT_FREE: Final = Reason.SLOT_FREE
_MOST_PROMISED: Final[Micros] = 300 * SECOND
"""Nobody is told to come back later than that."""


class FlowPool(Pool):
    """One model's bands, and what is in flight of them."""

    def __init__(self, name: str, rules: PoolRules, turns: Turns, dispatcher: Dispatcher) -> None:
        super().__init__(name, rules, turns)
        self.flow = dispatcher.rules
        self.gate = Gate(self.flow)
        self.takeable: Sheddable = Sheddable()
        self.instances: frozenset[int] | None = None
        """Those that its requests may be sent to, as last seen; None: nobody has looked yet."""
        self._dispatcher = dispatcher
        self._leaving = 0
        """Victims that hold their slots still."""
        self._expiries: list[tuple[Micros, int, Ticket]] = []
        """When waiters' time is up, a heap; who does not wait any more is dropped when it comes up, or when there are too many
        such."""
        self._joined = 0
        self.resize(0)
        dispatcher.add(self)

    # Coming and leaving.

    def enter(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        ticket.lane, ticket.charge = SHARED, 1
        ticket.submitted_at = ticket.queued_at = now
        ticket.totals.arrived += 1
        decisions = self._make_room(ticket, now)
        if ticket.state is _LEFT:
            return decisions
        ticket.turn = self._turns.last()
        self.gate.add(ticket)
        decisions += self._dispatcher.arrived(self, load, now)
        if ticket.state is _NEW:
            ticket.on(_QUEUE)
            self._join(ticket, now)
            return [*decisions, Decision(now, ticket.id, Action.QUEUE, Reason.SATURATED)]
        return sorted(decisions, key=lambda decision: decision.subject == ticket.id)

    def leave(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        if ticket.state in HOLDING:
            return [*self._give_back(ticket, end, now), *self.dispatch(now)]
        self.gate.remove(ticket)
        self._left_queue(ticket, now)
        self.forecasts[SHARED].left(now)
        ticket.on(_RELEASE)
        ticket.totals.cancelled += 1
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE)]

    def adopt(self, ticket: Ticket) -> None:
        ticket.lane, ticket.charge = SHARED, 1
        if ticket.state in HOLDING:
            self._hold(ticket)
            self._leaving += ticket.state is _VICTIM
            return
        if ticket.state is State.AWAITING:  # its victim leaves for nobody in particular
            ticket.on(_QUEUE)
            ticket.queued_at = ticket.submitted_at
            if ticket.other is not None:
                ticket.other.other = None
                ticket.other = None
        ticket.totals.waiting -= 1  # counted again
        self.gate.add(ticket)
        self._join(ticket, ticket.queued_at)

    # Who goes in.

    def dispatch(self, now: Micros) -> list[Decision]:
        """Of all pools: they may share their instances."""
        return self._dispatcher.left(now)

    def serve(self, ticket: Ticket, now: Micros) -> Decision:
        """It goes in."""
        self.gate.serve(ticket)
        if ticket.state is _QUEUED:
            self._left_queue(ticket, now)
            self.forecasts[SHARED].moved(now)
        return self._admit(ticket, _SLOT_FREE, now)

    def evict(self, now: Micros) -> Iterator[Decision]:
        """Stop the work of one, for one that is not sheddable; one at a time."""
        waiter = self.gate.not_sheddable()
        victim = None if waiter is None or self._leaving else self.takeable.last_of_lowest()
        if waiter is None or victim is None:
            return
        victim.on(Event.PREEMPT)
        self.takeable.discard(victim)
        victim.totals.preempted_by[waiter.priority_class] += 1
        self._leaving += 1
        yield Decision(now, victim.id, Action.PREEMPT, Reason.HIGHER_CLASS, waiter.id)

    # Who waits.

    def _make_room(self, ticket: Ticket, now: Micros) -> list[Decision]:
        """A place to wait for a newcomer, or he is rejected."""
        limits, band = self.flow.limits, self.gate.band(ticket.slo_priority)
        if limits.per_band_capacity and len(band) >= limits.per_band_capacity:
            return [self._reject(ticket, Reason.BAND_FULL, now)]
        if not limits.max_gateway_queue_depth or len(self.gate) < limits.max_gateway_queue_depth:
            return []
        displaced = self.gate.displaceable(ticket.slo_priority) if limits.queue_shedding else None
        if displaced is None:
            return [self._reject(ticket, Reason.QUEUE_FULL, now)]
        self._drop(displaced, now)
        return [self._reject(displaced, Reason.DISPLACED, now, ticket.id)]

    def _join(self, ticket: Ticket, now: Micros) -> None:
        """It waits, and stands at the gate already."""
        if not self.waiting:
            self.forecasts[SHARED].began(now)
        self._wait(ticket)
        self._dispatcher.wind_up(now)
        if self.flow.limits.request_ttl_us:
            self._joined += 1
            due = ticket.submitted_at + self.flow.limits.request_ttl_us
            heappush(self._expiries, (due, self._joined, ticket))
            if len(self._expiries) > 64 + 4 * self.waiting:
                self._expiries = [entry for entry in self._expiries if entry[2].state is _QUEUED]
                heapify(self._expiries)

    def _left_queue(self, ticket: Ticket, now: Micros) -> None:
        self._wait_no_more(ticket)
        ticket.totals.queue_wait.observe(now - ticket.queued_at)

    def _drop(self, ticket: Ticket, now: Micros) -> None:
        """One who waits is about to be rejected."""
        self.gate.remove(ticket)
        self._left_queue(ticket, now)
        self.forecasts[SHARED].left(now)

    def _give_back(self, ticket: Ticket, end: End, now: Micros) -> Iterator[Decision]:
        victim = ticket.state is _VICTIM
        self._release(ticket, now)
        self._leaving -= victim
        if victim and end is End.PREEMPTED and self.rules.retries and not self._too_late(ticket, now):
            ticket.on(Event.RETRY)
            ticket.retried = True
            ticket.totals.retried += 1
            ticket.turn, ticket.queued_at = self._turns.first(), now
            self.gate.add(ticket)
            self._join(ticket, now)
            yield Decision(now, ticket.id, Action.QUEUE, Reason.TO_BE_RETRIED)
        else:
            ticket.totals.ended[End.PREEMPTED if victim else end] += 1
            ticket.on(_RELEASE)

    def _too_late(self, ticket: Ticket, now: Micros) -> bool:
        ttl = self.flow.limits.request_ttl_us
        return ttl > 0 and ticket.submitted_at + ttl <= now

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros | None:
        return self.forecasts[SHARED].promise(self.waiting, now, _MOST_PROMISED)

    def unblock(self, tenant: str) -> None:
        """Nobody is passed over here."""

    # Time.

    def fire(self, now: Micros) -> list[Decision]:
        return self._dispatcher.fire(now)

    def expire(self, now: Micros) -> Iterator[Decision]:
        """Who has waited too long."""
        while (due := self._next_expiry()) is not None and due <= now:
            ticket = heappop(self._expiries)[2]
            self._drop(ticket, now)
            yield self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def first_due(self, ticket: Ticket) -> Micros | None:
        return self.next_due()

    def soon(self) -> Micros | None:
        return self._dispatcher.soon()

    def next_due(self) -> Micros | None:
        due, expiry = self.soon(), self._next_expiry()
        return expiry if due is None or (expiry is not None and expiry < due) else due

    def _next_expiry(self) -> Micros | None:
        while self._expiries and self._expiries[0][2].state is not _QUEUED:
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    # Looking.

    def problems(self) -> Iterable[str]:
        waiting = [*self.gate]
        if not len(waiting) == len(self.gate) == self.waiting:
            yield f"{self.waiting} counted as waiting, {len(self.gate)} at the gate, {len(waiting)} in its bands"
        if any(ticket.state is not _QUEUED for ticket in waiting):
            yield f"who stands at the gate does not wait: {waiting}"
        if self.waiting and self.flow.ticks and self._dispatcher.soon() is None:
            yield "somebody waits, and nothing will let him in"
