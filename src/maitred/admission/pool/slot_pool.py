"""SlotPool: the slots of one model, the requests that hold them, and the requests that wait for them.

The core finds tickets and settles what falls due in time. A pool decides which request enters, where a request waits,
and which one is next. Two kinds of pools do this differently: `classes.pool` by slots, `flow.pool` by the load of the
instances. What both have in common stands here: holding a slot and freeing it (`_free_slot`), waiting, being rejected,
what becomes of a victim (`_end_or_retry`), and the counters and tenants' accounts that follow.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from maitred.admission.learned_slots.signals import NO_DEMAND, PoolDemand
from maitred.admission.pool.agenda import Agenda
from maitred.admission.pool.pool_views import PoolView
from maitred.admission.pool.slots import Slots
from maitred.admission.terms.counters import ClassCounters, ClassView
from maitred.admission.terms.enums import Action, Reason, ReleaseReason
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.admission.terms.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState
from maitred.admission.waiting.preemption import PreemptionCandidates
from maitred.admission.waiting.queues import SequenceNumbers
from maitred.admission.waiting.retry_after import RetryAfterEstimator
from maitred.admission.waiting.token_bucket import TokenBucket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.request import RequestId
from maitred.core.units import Micros

_ADMIT, _REJECT, _RELEASE = TicketEvent.ADMIT, TicketEvent.REJECT, TicketEvent.RELEASE  # members of enums are slow to look up
_ADMITTED, _VICTIM = TicketState.ADMITTED, TicketState.VICTIM
_ADMISSION, _REJECTION = Action.ADMIT, Action.REJECT
_QUEUE_TIMEOUT, _QUEUE_FULL = Reason.QUEUE_TIMEOUT, Reason.QUEUE_FULL
_PREEMPTED = ReleaseReason.SLOT_PREEMPTED
LoadProbe: TypeAlias = Callable[[str, Micros], FleetLoad]
"""Returns the load of the instances behind a pool (by its name) at this moment, which is passed for the log."""
EMPTY_LOAD: Final = FleetLoad()


def no_load(pool: str, now: Micros) -> FleetLoad:
    """Return the load of no instances: for configurations that do not go by load."""
    return EMPTY_LOAD


class SlotPool(ABC):
    """The slots of one model, or of all models together."""

    def __init__(self, name: str, rules: PoolRules, sequence_numbers: SequenceNumbers, agenda: Agenda) -> None:
        self.name = name
        self.rules = rules
        self.slots = Slots()
        self.retry_estimators = [RetryAfterEstimator() for _ in LANES]
        self.waiting = 0
        """Requests that do not hold a slot yet."""
        self.watches_lead = False
        """Whether a request that holds a slot may be without a place in its engine (`lead`)."""
        self.victims = PreemptionCandidates()
        """Holders of slots that may be preempted."""
        self._agenda = agenda
        self._sequence_numbers = sequence_numbers
        self._bucket: TokenBucket | None = None

    def resize(self, capacity: int, lead: Lead = NO_LEAD) -> None:
        """Set the capacity, in slots, of which `lead` are beyond what the engines run at once. To be marked afterwards."""
        self.slots.resize(capacity if self.rules.capacity is None else self.rules.capacity, self.rules, lead)

    @abstractmethod
    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """Admit, queue or reject a newcomer, which its state tells afterwards.

        Like all that follow, this marks what it may have made possible, and notes until when a request waits (`agenda`)."""

    @abstractmethod
    def release(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        """Take a request out of the queue, or out of its slot. A victim that is tried again has not left.

        Called by `Admission.release`, which ignores requests that have left; the rules are in `ClassPool` and `FlowPool`.
        """

    @abstractmethod
    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Charge the tenant of a request that ends for the tokens that it had, where tenants have weights."""

    def adopt(self, ticket: Ticket) -> None:
        """Take over a request from a pool under other rules, in its state. To be called in the order of sequence numbers."""
        ticket.lane = self.rules.lane_of[ticket.priority_class]
        ticket.victim_group = None if ticket.retried else self._victim_group(ticket)
        self._set_slot_units(ticket)
        if ticket.state in SLOT_HOLDING_STATES:
            self._take_slot(ticket)
        else:
            self._adopt_waiter(ticket)

    @abstractmethod
    def _victim_group(self, ticket: Ticket) -> int | None:
        """Return the group in which a request may be chosen as a victim, or None if it may not."""

    @abstractmethod
    def _set_slot_units(self, ticket: Ticket) -> None:
        """Set the units that the slot of a request takes."""

    @abstractmethod
    def _adopt_waiter(self, ticket: Ticket) -> None:
        """Take over a waiting request."""

    def inherit_from(self, previous: SlotPool) -> None:
        """Take over from `previous` the speed of its queues, and the level of its token bucket if the rate stays."""
        # In place, because the queues of this pool hold the same list.
        self.retry_estimators[:] = previous.retry_estimators
        bucket = previous._bucket
        # A new bucket is full. If it were used while the rate stays, every reload would let a whole burst in.
        if bucket is not None and (bucket.rate, bucket.burst) == (self.rules.rate, self.rules.burst):
            self._bucket = bucket

    def set_stranded(self, ticket: Ticket, *, stranded: bool, now: Micros) -> list[Decision]:
        """Note whether the slot that a request holds goes when it leaves, or stays (`Ticket.stranded`). If it goes, a preemptor
        that waits for it queues."""
        ticket.stranded = stranded
        if stranded:
            self.victims.discard(ticket)
        else:
            self.victims.restore(ticket)
        return self.dispatch(now) if self.waiting else []

    @abstractmethod
    def on_declined(self, victim: Ticket, now: Micros) -> list[Decision]:
        """Find another slot for the preemptor of a victim that keeps its own: its response had begun already."""

    @property
    def is_overdrawn(self) -> bool:
        """Whether more slots are held than there are, so that none of them may be used for another dispatch."""
        return self.slots.in_use > self.slots.capacity

    def leave_backend(self, ticket: Ticket, now: Micros) -> list[Decision]:
        """Let a request keep its slot, or wait again, first in its lane, if fewer are left; or reject it after its timeout."""
        if ticket.state is not _ADMITTED or not self.is_overdrawn:
            return self.set_stranded(ticket, stranded=False, now=now)
        self._free_slot(ticket, now)
        ticket.transition(TicketEvent.QUEUE)
        ticket.stranded = False
        ticket.counters.retried += 1
        decisions = [Decision(now, ticket.id, Action.QUEUE, Reason.LOST_BACKEND)]
        if self._is_in_time(ticket, now):
            self._requeue_front(ticket, now)
        else:
            decisions.append(self._reject(ticket, _QUEUE_TIMEOUT, now))
        return decisions + self.dispatch(now)

    @abstractmethod
    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiting requests, as far as the rules let them in now, and note when time may let in others."""

    @abstractmethod
    def schedule_waiters(self) -> None:
        """Note when time may first change something for the requests that still wait after `dispatch`."""

    @abstractmethod
    def on_tenant_slot_freed(self, tenant: str) -> None:
        """Note that a tenant holds one slot less, in this pool or another, so it may be below its limit again."""

    @abstractmethod
    def advance(self, now: Micros) -> list[Decision]:
        """Do what is due at `now` and not before."""

    @abstractmethod
    def next_deadline(self) -> Micros | None:
        """Return when time alone changes something in this pool, or None if never."""

    def demand(self) -> PoolDemand:
        """Return whether a request waits for a slot, and what reservations hold back from it."""
        return NO_DEMAND

    def view(self, counters: Sequence[ClassCounters]) -> PoolView:
        """Return what the pool looks like now; `counters` are its own, by class."""
        slots, unit, classes = self.slots, self.slots.units_per_slot, {}
        for c in MOST_URGENT_FIRST:
            lane, view = self.rules.lane_of[c], ClassView()
            view.merge(counters[c])
            view.queue_size = self.rules.lanes[lane].queue_size
            view.reserved = slots.reserved[c] // unit
            view.desired = slots.desired[c] // unit
            view.held = slots.held(lane) // unit
            view.pressure = self.pressure(lane, view.waiting)
            view.retry_after_error.merge(self.retry_estimators[c].errors)  # A shared lane has one estimator: that of its class.
            classes[c] = view
        in_flight = sum(view.in_flight for view in classes.values())
        return PoolView(slots.capacity // unit, in_flight, self.waiting, classes)

    def pressure(self, lane: int, waiting: int) -> float:
        """Return how pressed a lane is, 0 to 1 (SMG's measure): the larger of two shares. One is how full its queue is. The
        other is how many slots it uses beyond its reservation, of those that higher lanes do not reserve."""
        slots, size = self.slots, self.rules.lanes[lane].queue_size
        above = max(0, slots.in_flight[lane] - slots.reserved[lane])
        reach = max(1, slots.capacity - sum(slots.reserved[lane + 1 :]))
        return min(1.0, max(waiting / size if size else 0.0, above / reach))

    @abstractmethod
    def find_violations(self) -> Iterable[str]:
        """Yield a line for each invariant of the pool that does not hold. O(n)."""

    def _admit(self, ticket: Ticket, reason: Reason, now: Micros, other: RequestId | None = None) -> Decision:
        ticket.transition(_ADMIT)
        ticket.sequence_number = self._sequence_numbers.next_back()
        ticket.admitted_at = now
        ticket.counters.admitted += 1
        self._take_slot(ticket)
        if self._bucket is not None:
            self._bucket.take_token(now)
        return Decision(now, ticket.id, _ADMISSION, reason, other)

    def _take_slot(self, ticket: Ticket) -> None:
        self.slots.take(ticket.lane, ticket.slot_units)
        ticket.counters.in_flight += 1
        if ticket.tenant_account is not None:
            ticket.tenant_account.in_flight += ticket.sequences
            self._agenda.note_taken(ticket.tenant_account, self.name)
        self.victims.add(ticket)

    def _free_slot(self, ticket: Ticket, now: Micros) -> None:
        """Free the slot of a request that gives it up. Its state, by which this counts, changes afterwards."""
        self.slots.give_back(ticket.lane, ticket.slot_units)
        if ticket.state is _ADMITTED:
            self.victims.discard(ticket)
        ticket.counters.in_flight -= 1
        held = now - ticket.admitted_at
        ticket.counters.slot_hold.observe(held)
        if ticket.state is _VICTIM:
            ticket.counters.wasted_slot_time.observe(held)
        if ticket.tenant_account is not None:
            ticket.tenant_account.in_flight -= ticket.sequences
            self.on_tenant_slot_freed(ticket.tenant_account.name)

    def _end_or_retry(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        """End a request whose slot has just been freed; or let it wait again, if it is a victim that is tried again."""
        if ticket.state is not _VICTIM:
            ticket.counters.ended[release_reason] += 1
            ticket.transition(_RELEASE)
            return []
        if not self._may_retry(ticket, release_reason, now):
            ticket.counters.ended[_PREEMPTED] += 1
            ticket.transition(_RELEASE)
            return []
        ticket.transition(TicketEvent.RETRY)
        ticket.retried, ticket.stranded, ticket.victim_group = True, False, None
        ticket.counters.retried += 1
        self._requeue_front(ticket, now)
        return [Decision(now, ticket.id, Action.QUEUE, Reason.TO_BE_RETRIED)]

    def _may_retry(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> bool:
        """Return whether a victim is tried again: if `on_preempt` says so (`PoolRules.retries_victims`), its client is still
        there, and its queue timeout has not passed."""
        if release_reason is not _PREEMPTED or not self.rules.retries_victims:
            return False
        return self._is_in_time(ticket, now)

    def _is_in_time(self, ticket: Ticket, now: Micros) -> bool:
        """Return whether the timeout of a request, which counts from its submission, has not passed: otherwise it would wait
        only to be rejected at once."""
        timeout = self.rules.lanes[ticket.lane].queue_timeout
        return not timeout or ticket.submitted_at + timeout > now

    @abstractmethod
    def _requeue_front(self, ticket: Ticket, now: Micros) -> None:
        """Let a request that has lost its slot wait again, before all others of its lane."""

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
        self._agenda.tickets.pop(ticket.id, None)  # A newcomer is not among them yet.
        if self._agenda.reserved and (reserved := self._agenda.reserved.pop(ticket.id, None)) is not None:
            reserved.give_back()
        counters = ticket.counters
        if reason is _QUEUE_TIMEOUT:
            counters.queue_timeout += 1
        elif reason is _QUEUE_FULL:
            counters.queue_full += 1
        elif reason is Reason.TENANT_QUEUE_FULL:
            counters.tenant_queue_full += 1
        else:
            counters.refused[reason] += 1
        return Decision(now, ticket.id, _REJECTION, reason, other, self._retry_after(ticket, now))

    @abstractmethod
    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros | None:
        """Return after how long a rejected request should be sent again, in µs, or None if that is not known."""
