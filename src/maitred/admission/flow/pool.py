"""FlowPool: requests wait in front of the instances while these are saturated, and not inside them.

A newcomer joins the flow of its band, and then as many requests enter as the instances can carry:

    saturation    a detector reads how saturated the instances are
    bands         which bands may enter at that saturation, and which request is next
    dispatcher    which of the models goes first

An admitted request counts for the saturation at once, before an instance shows it.

Example: one instance, the detector `concurrency` with a limit of 2. Requests a and b arrive at saturations of 0 and 0.5
and enter. Request c arrives at 1.0 and waits. When a has left, the saturation is 0.5, and c enters.

A request that finds its band full, or the queue, is rejected; or it takes the place of the newest sheddable waiting
request, which is rejected instead. A request that waits too long is rejected. And if all of that does not help a
request that is not sheddable, sheddable work in flight may be stopped (`in_flight_eviction`).

At one instant inputs come before ticks: a request that arrives at a tick may enter with it.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from maitred.admission.flow.bands import PriorityBands
from maitred.admission.flow.dispatcher import Dispatcher
from maitred.admission.pool.agenda import Agenda
from maitred.admission.pool.slot_pool import SlotPool
from maitred.admission.terms.enums import Action, Reason, ReleaseReason
from maitred.admission.terms.rules import SHARED_LANE, PoolRules
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState
from maitred.admission.waiting.preemption import unlink_peers
from maitred.admission.waiting.queues import SequenceNumbers
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.units import SECOND, Micros

_NEW, _QUEUED = TicketState.NEW, TicketState.QUEUED  # members of enums are slow to look up
_VICTIM, _LEFT = TicketState.VICTIM, TicketState.LEFT
_QUEUE, _RELEASE = TicketEvent.QUEUE, TicketEvent.RELEASE
_SLOT_FREE: Final = Reason.SLOT_FREE
_MAX_RETRY_AFTER: Final[Micros] = 300 * SECOND
"""The longest `Retry-After`. (The gateway tells clients 59 s at most, which all SDKs obey.)"""


class FlowPool(SlotPool):
    """The waiting requests of one model, and those in flight. Slots are counted, and limit nothing."""

    def __init__(
        self, name: str, rules: PoolRules, sequence_numbers: SequenceNumbers, agenda: Agenda, dispatcher: Dispatcher
    ) -> None:
        super().__init__(name, rules, sequence_numbers, agenda)
        self.flow_rules = dispatcher.rules
        self.bands = PriorityBands(self.flow_rules)
        self.known_instances: frozenset[int] | None = None
        """The instances that its requests may be sent to, as last seen, or None if not seen yet."""
        self._dispatcher = dispatcher
        self._pending_victims = 0
        """Victims that still hold their slots."""
        self._expiries: IndexedHeap[RequestId, Micros, Ticket] = IndexedHeap()
        """Waiting requests by the instant at which they have waited too long."""
        self.resize(0)
        dispatcher.add(self)

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        ticket.lane, ticket.victim_group = SHARED_LANE, self._victim_group(ticket)
        self._set_slot_units(ticket)
        ticket.submitted_at = ticket.queued_at = now
        ticket.counters.arrived += 1
        decisions = self._make_queue_room(ticket, now)
        if ticket.state is _LEFT:
            return decisions
        # The newcomer stands in its band while the dispatcher chooses, so that it competes with waiting requests by one rule.
        # It is counted as waiting only if it is still there afterwards.
        ticket.sequence_number = self._sequence_numbers.next_back()
        self.bands.add(ticket)
        decisions += self._dispatcher.on_arrival(self, load, now)
        if ticket.state is _NEW:
            ticket.transition(_QUEUE)
            self._enqueue(ticket, now)
            decisions.append(Decision(now, ticket.id, Action.QUEUE, Reason.SATURATED))
        self.schedule_waiters()
        # The decision on the newcomer stands last in logs, though it may have been taken earlier. A replay compares bytes.
        return sorted(decisions, key=lambda decision: decision.subject == ticket.id)

    def release(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        if ticket.state in SLOT_HOLDING_STATES:
            self._pending_victims -= ticket.state is _VICTIM
            self._free_slot(ticket, now)
            self._agenda.note_freed(ticket.tenant_account, self.name)
            return [*self._end_or_retry(ticket, release_reason, now), *self.dispatch(now)]
        self._remove_waiter(ticket, now)
        ticket.transition(_RELEASE)
        ticket.counters.cancelled += 1
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE)]

    def on_declined(self, victim: Ticket, now: Micros) -> list[Decision]:
        self._pending_victims -= 1
        return self.dispatch(now)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Do nothing: with flow control tenants have no weights."""

    def inherit_from(self, previous: SlotPool) -> None:
        super().inherit_from(previous)
        if isinstance(previous, FlowPool):
            self.bands.inherit_from(previous.bands)

    def adopt(self, ticket: Ticket) -> None:
        super().adopt(ticket)
        self._pending_victims += ticket.state is _VICTIM

    def _adopt_waiter(self, ticket: Ticket) -> None:
        if ticket.state is TicketState.AWAITING:  # With flow control no slot is kept for a preemptor.
            ticket.transition(_QUEUE)
            ticket.queued_at = ticket.submitted_at
            unlink_peers(ticket)
        self.bands.add(ticket)
        self._enqueue(ticket, ticket.queued_at)

    def _victim_group(self, ticket: Ticket) -> int | None:
        """Return the SLO priority, by which victims are chosen. Only sheddable requests can be victims."""
        return ticket.slo_priority if ticket.sheddable else None

    def _set_slot_units(self, ticket: Ticket) -> None:
        ticket.slot_units = ticket.sequences

    @property
    def is_overdrawn(self) -> bool:
        return False  # Slots are no limit here.

    def _requeue_front(self, ticket: Ticket, now: Micros) -> None:
        ticket.sequence_number, ticket.queued_at = self._sequence_numbers.next_front(), now
        self.bands.add(ticket)
        self._enqueue(ticket, now)

    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiting requests of all pools, because they may share their instances."""
        admitted = self._dispatcher.on_departure(now)
        self.schedule_waiters()
        return admitted

    def schedule_waiters(self) -> None:
        self._agenda.schedule(self.next_deadline())

    def admit_waiter(self, ticket: Ticket, now: Micros) -> Decision:
        """Admit a request that the dispatcher has chosen."""
        self.bands.take(ticket)
        if ticket.state is _QUEUED:  # A newcomer that enters at once was never counted as waiting.
            self._on_dequeued(ticket, now)
            self.retry_estimators[SHARED_LANE].on_admitted(now)
        return self._admit(ticket, _SLOT_FREE, now)

    def preempt_one(self, now: Micros) -> Iterator[Decision]:
        """Preempt one sheddable request, if a request waits that is not sheddable; the next one only when this one has left."""
        # The instances show a victim as load until it has left: without this wait, every input would stop another one.
        waiter = self.bands.first_non_sheddable()
        victim = None if waiter is None or self._pending_victims else self.victims.newest_below(0)
        if waiter is None or victim is None:
            return
        victim.transition(TicketEvent.PREEMPT_SLOT)
        self.victims.discard(victim)
        victim.counters.preempted_by[waiter.priority_class] += 1
        self._pending_victims += 1
        yield Decision(now, victim.id, Action.PREEMPT_SLOT, Reason.HIGHER_CLASS, waiter.id)

    def _make_queue_room(self, ticket: Ticket, now: Micros) -> list[Decision]:
        """Make room for a newcomer to wait, or reject it."""
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
        """Count a request as waiting; it is in its band already."""
        if not self.waiting:
            self.retry_estimators[SHARED_LANE].on_queue_started(now)
        self._start_waiting(ticket)
        self._dispatcher.arm_tick(now)
        if self.flow_rules.config.request_ttl_us:
            self._expiries.push(ticket.id, self._expires_at(ticket), ticket)

    def _on_dequeued(self, ticket: Ticket, now: Micros) -> None:
        self._stop_waiting(ticket)
        self._expiries.remove(ticket.id)
        ticket.counters.queue_wait.observe(now - ticket.queued_at)

    def _remove_waiter(self, ticket: Ticket, now: Micros) -> None:
        """Remove a waiting request that does not enter."""
        self.bands.remove(ticket)
        self._on_dequeued(ticket, now)
        self.retry_estimators[SHARED_LANE].on_left(now)

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros | None:
        return self.retry_estimators[SHARED_LANE].estimate(self.waiting, now, _MAX_RETRY_AFTER)

    def on_tenant_slot_freed(self, tenant: str) -> None:
        """Do nothing: with flow control no tenant is passed over."""

    def advance(self, now: Micros) -> list[Decision]:
        return self._dispatcher.advance(now)

    def expire_waiters(self, now: Micros) -> Iterator[Decision]:
        """Reject requests that have waited too long."""
        while (ticket := self._expiries.peek()) is not None and self._expires_at(ticket) <= now:
            self._remove_waiter(ticket, now)
            yield self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def _expires_at(self, ticket: Ticket) -> Micros:
        return ticket.submitted_at + self.flow_rules.config.request_ttl_us

    def next_deadline(self) -> Micros | None:
        due, expiry = self._dispatcher.next_admission_at(), self._expiries.peek_key()
        return expiry if due is None or (expiry is not None and expiry < due) else due

    def find_violations(self) -> Iterator[str]:
        waiting = [*self.bands]
        if not len(waiting) == len(self.bands) == self.waiting:
            yield f"{self.waiting} counted as waiting, {len(self.bands)} in all bands, {len(waiting)} in each of them"
        if any(ticket.state is not _QUEUED for ticket in waiting):
            yield f"requests in bands that do not wait: {waiting}"
        if self.waiting and self.flow_rules.needs_ticks and self._dispatcher.next_admission_at() is None:
            yield "requests wait, and no tick will let them in"
