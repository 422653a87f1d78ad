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

from maitred.admission.enums import Action, Reason, ReleaseReason
from maitred.admission.flow_control.bands import PriorityBands
from maitred.admission.flow_control.dispatcher import Dispatcher
from maitred.admission.pool import SlotPool
from maitred.admission.preemption import EvictionCandidates
from maitred.admission.queues import SequenceNumbers
from maitred.admission.rules import SHARED_LANE, PoolRules
from maitred.admission.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.units import SECOND, Micros

_NEW, _QUEUED = TicketState.NEW, TicketState.QUEUED  # members of enums are slow to look up
_VICTIM, _LEFT = TicketState.VICTIM, TicketState.LEFT
_QUEUE, _RELEASE = TicketEvent.QUEUE, TicketEvent.RELEASE
_SLOT_FREE: Final = Reason.SLOT_FREE
_MAX_RETRY_AFTER: Final[Micros] = 300 * SECOND
"""Nobody is told to come back later than that."""


class FlowPool(SlotPool):
    """One model's bands, and what is in flight of them."""

    def __init__(self, name: str, rules: PoolRules, sequence_numbers: SequenceNumbers, dispatcher: Dispatcher) -> None:
        super().__init__(name, rules, sequence_numbers)
        self.flow_rules = dispatcher.rules
        self.bands = PriorityBands(self.flow_rules)
        self.victims: EvictionCandidates = EvictionCandidates()
        self.known_instances: frozenset[int] | None = None
        """Those that its requests may be sent to, as last seen; None: nobody has looked yet."""
        self._dispatcher = dispatcher
        self._pending_victims = 0
        """Victims that hold their slots still."""
        self._expiries: list[tuple[Micros, int, Ticket]] = []
        """When waiters' time is up, a heap; who does not wait any more is dropped when it comes up, or when there are too many
        such."""
        self._expiry_count = 0
        self.resize(0)
        dispatcher.add(self)

    # Coming and leaving.

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        ticket.lane, ticket.slot_units = SHARED_LANE, 1
        ticket.submitted_at = ticket.queued_at = now
        ticket.counters.arrived += 1
        decisions = self._make_queue_room(ticket, now)
        if ticket.state is _LEFT:
            return decisions
        ticket.sequence_number = self._sequence_numbers.next_back()
        self.bands.add(ticket)
        decisions += self._dispatcher.on_arrival(self, load, now)
        if ticket.state is _NEW:
            ticket.transition(_QUEUE)
            self._enqueue(ticket, now)
            return [*decisions, Decision(now, ticket.id, Action.QUEUE, Reason.SATURATED)]
        return sorted(decisions, key=lambda decision: decision.subject == ticket.id)

    def release(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        if ticket.state in SLOT_HOLDING_STATES:
            return [*self._release_holder(ticket, release_reason, now), *self.dispatch(now)]
        self.bands.remove(ticket)
        self._on_dequeued(ticket, now)
        self.retry_estimators[SHARED_LANE].on_left(now)
        ticket.transition(_RELEASE)
        ticket.counters.cancelled += 1
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE)]

    def adopt(self, ticket: Ticket) -> None:
        ticket.lane, ticket.slot_units = SHARED_LANE, 1
        if ticket.state in SLOT_HOLDING_STATES:
            self._take_slot(ticket)
            self._pending_victims += ticket.state is _VICTIM
            return
        if ticket.state is TicketState.AWAITING:  # its victim leaves for nobody in particular
            ticket.transition(_QUEUE)
            ticket.queued_at = ticket.submitted_at
            if ticket.preemption_peer is not None:
                ticket.preemption_peer.preemption_peer = None
                ticket.preemption_peer = None
        ticket.counters.waiting -= 1  # counted again
        self.bands.add(ticket)
        self._enqueue(ticket, ticket.queued_at)

    # Who goes in.

    def dispatch(self, now: Micros) -> list[Decision]:
        """Of all pools: they may share their instances."""
        return self._dispatcher.on_departure(now)

    def admit_waiter(self, ticket: Ticket, now: Micros) -> Decision:
        """It goes in."""
        self.bands.take(ticket)
        if ticket.state is _QUEUED:
            self._on_dequeued(ticket, now)
            self.retry_estimators[SHARED_LANE].on_admitted(now)
        return self._admit(ticket, _SLOT_FREE, now)

    def evict_one(self, now: Micros) -> Iterator[Decision]:
        """Stop the work of one, for one that is not sheddable; one at a time."""
        waiter = self.bands.first_non_sheddable()
        victim = None if waiter is None or self._pending_victims else self.victims.newest_of_lowest()
        if waiter is None or victim is None:
            return
        victim.transition(TicketEvent.PREEMPT_SLOT)
        self.victims.discard(victim)
        victim.counters.preempted_by[waiter.priority_class] += 1
        self._pending_victims += 1
        yield Decision(now, victim.id, Action.PREEMPT_SLOT, Reason.HIGHER_CLASS, waiter.id)

    # Who waits.

    def _make_queue_room(self, ticket: Ticket, now: Micros) -> list[Decision]:
        """A place to wait for a newcomer, or he is rejected."""
        limits, band = self.flow_rules.config, self.bands.band(ticket.slo_priority)
        if limits.per_band_capacity and len(band) >= limits.per_band_capacity:
            return [self._reject(ticket, Reason.BAND_FULL, now)]
        if not limits.max_gateway_queue_depth or len(self.bands) < limits.max_gateway_queue_depth:
            return []
        displaced = self.bands.find_displaceable(ticket.slo_priority) if limits.queue_shedding else None
        if displaced is None:
            return [self._reject(ticket, Reason.QUEUE_FULL, now)]
        self._remove_waiter(displaced, now)
        return [self._reject(displaced, Reason.DISPLACED, now, ticket.id)]

    def _enqueue(self, ticket: Ticket, now: Micros) -> None:
        """It waits, and stands at the gate already."""
        if not self.waiting:
            self.retry_estimators[SHARED_LANE].on_queue_started(now)
        self._start_waiting(ticket)
        self._dispatcher.arm_tick(now)
        if self.flow_rules.config.request_ttl_us:
            self._expiry_count += 1
            due = ticket.submitted_at + self.flow_rules.config.request_ttl_us
            heappush(self._expiries, (due, self._expiry_count, ticket))
            if len(self._expiries) > 64 + 4 * self.waiting:
                self._expiries = [entry for entry in self._expiries if entry[2].state is _QUEUED]
                heapify(self._expiries)

    def _on_dequeued(self, ticket: Ticket, now: Micros) -> None:
        self._stop_waiting(ticket)
        ticket.counters.queue_wait.observe(now - ticket.queued_at)

    def _remove_waiter(self, ticket: Ticket, now: Micros) -> None:
        """One who waits is about to be rejected."""
        self.bands.remove(ticket)
        self._on_dequeued(ticket, now)
        self.retry_estimators[SHARED_LANE].on_left(now)

    def _release_holder(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> Iterator[Decision]:
        victim = ticket.state is _VICTIM
        self._release_slot(ticket, now)
        self._pending_victims -= victim
        if (
            victim
            and release_reason is ReleaseReason.SLOT_PREEMPTED
            and self.rules.retries_victims
            and not self._is_expired(ticket, now)
        ):
            ticket.transition(TicketEvent.RETRY)
            ticket.retried = True
            ticket.counters.retried += 1
            ticket.sequence_number, ticket.queued_at = self._sequence_numbers.next_front(), now
            self.bands.add(ticket)
            self._enqueue(ticket, now)
            yield Decision(now, ticket.id, Action.QUEUE, Reason.TO_BE_RETRIED)
        else:
            ticket.counters.ended[ReleaseReason.SLOT_PREEMPTED if victim else release_reason] += 1
            ticket.transition(_RELEASE)

    def _is_expired(self, ticket: Ticket, now: Micros) -> bool:
        ttl = self.flow_rules.config.request_ttl_us
        return ttl > 0 and ticket.submitted_at + ttl <= now

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros | None:
        return self.retry_estimators[SHARED_LANE].estimate(self.waiting, now, _MAX_RETRY_AFTER)

    def unblock_tenant(self, tenant: str) -> None:
        """Nobody is passed over here."""

    # Time.

    def advance(self, now: Micros) -> list[Decision]:
        return self._dispatcher.advance(now)

    def expire_waiters(self, now: Micros) -> Iterator[Decision]:
        """Who has waited too long."""
        while (due := self._next_expiry()) is not None and due <= now:
            ticket = heappop(self._expiries)[2]
            self._remove_waiter(ticket, now)
            yield self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def deadline_of(self, ticket: Ticket) -> Micros | None:
        return self.next_deadline()

    def next_admission_at(self) -> Micros | None:
        return self._dispatcher.next_admission_at()

    def next_deadline(self) -> Micros | None:
        due, expiry = self.next_admission_at(), self._next_expiry()
        return expiry if due is None or (expiry is not None and expiry < due) else due

    def _next_expiry(self) -> Micros | None:
        while self._expiries and self._expiries[0][2].state is not _QUEUED:
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    # Looking.

    def find_violations(self) -> Iterable[str]:
        waiting = [*self.bands]
        if not len(waiting) == len(self.bands) == self.waiting:
            yield f"{self.waiting} counted as waiting, {len(self.bands)} at the gate, {len(waiting)} in its bands"
        if any(ticket.state is not _QUEUED for ticket in waiting):
            yield f"who stands at the gate does not wait: {waiting}"
        if self.waiting and self.flow_rules.needs_ticks and self._dispatcher.next_admission_at() is None:
            yield "somebody waits, and nothing will let him in"
