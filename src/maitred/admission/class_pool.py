"""The slots of one model, and the queues of classes before them.

A newcomer is admitted if a slot is free for its class and nobody of its own or a higher class waits. If it finds no slot and
its class may preempt, it takes the slot of somebody of a lower class who has shown his client nothing yet: the victim is told
to stop, and the slot is kept for its preemptor. Else the newcomer queues; else, the queue being full, it is rejected.

Whenever slots may have become free, waiters are admitted, most urgent class first, until no slot is free for any of them. Who
has starved may be promoted (see `promotions`). So after every event:

    nobody waits while a slot is free for his class, unless his tenant is at its limit
"""

from __future__ import annotations

from collections.abc import Iterable

from maitred.admission.enums import Action, Reason, ReleaseReason
from maitred.admission.invariants import class_pool_violations
from maitred.admission.pool import SlotPool
from maitred.admission.preemption import PreemptionCandidates
from maitred.admission.priority import AdmissionPriority, PromotionBudget
from maitred.admission.queues import SequenceNumbers
from maitred.admission.rate_limit import TokenBucket
from maitred.admission.rules import MOST_URGENT_FIRST, PoolRules
from maitred.admission.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState
from maitred.admission.waiting import PoolQueues
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.units import Micros

_QUEUE, _RELEASE = TicketEvent.QUEUE, TicketEvent.RELEASE  # members of enums are slow to look up
_AWAITING, _VICTIM = TicketState.AWAITING, TicketState.VICTIM
_SLOT_FREE = Reason.SLOT_FREE
_CURED_BY_PREEMPTION = frozenset((Reason.NO_SLOT, Reason.HELD_BY_RESERVATION))
"""What a preemption can help against."""


class ClassPool(SlotPool):
    """One model's slots and queues, or those of all."""

    def __init__(self, name: str, rules: PoolRules, sequence_numbers: SequenceNumbers) -> None:
        super().__init__(name, rules, sequence_numbers)
        self.queues = PoolQueues(rules, sequence_numbers, self.retry_estimators)
        self.promotion_budget = PromotionBudget(rules.promotion_share, rules.promotion_burst)
        self.priority = AdmissionPriority(rules, self.slots, self.queues, self.promotion_budget)
        self.victims: PreemptionCandidates = PreemptionCandidates()
        self.dispatched_at: Micros = 0
        """Who starved by then has been looked at."""
        self._bucket = TokenBucket(rules.rate, rules.burst) if rules.rate else None
        self.resize(0)

    # Coming and leaving.

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """A newcomer: admitted, queued or rejected; or it awaits a victim, who is told first."""
        lane = ticket.lane = self.rules.lane_of[ticket.priority_class]
        ticket.submitted_at = now
        ticket.counters.arrived += 1
        obstacle = self.priority.blocking_reason(ticket)
        if obstacle is None and self._bucket is not None and not self._bucket.has_token(now):
            obstacle = Reason.RATE_LIMIT
        if obstacle is None:
            return [self._admit(ticket, _SLOT_FREE, now)]
        if obstacle in _CURED_BY_PREEMPTION and self.rules.lanes[lane].can_preempt:
            victim = self.priority.choose_victim(ticket, self.victims)
            if victim is not None:
                return self._preempt(victim, ticket, now)
        if ticket.tenant_account is not None and ticket.tenant_account.queue_full:
            return [self._reject(ticket, Reason.TENANT_QUEUE_FULL, now)]
        if self.queues.is_lane_full(lane):
            return [self._reject(ticket, Reason.QUEUE_FULL, now)]
        ticket.transition(_QUEUE)
        self._start_waiting(ticket)
        self.queues.enqueue(ticket, now)
        return [Decision(now, ticket.id, Action.QUEUE, obstacle)]

    def release(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        """It is released: from the queue, or from its slot, which passes on. A victim that is tried again has not left."""
        if ticket.state in SLOT_HOLDING_STATES:
            return self._release_holder(ticket, release_reason, now)
        if ticket.state is _AWAITING:
            self.queues.pending_preemptors.remove(ticket)
        else:
            self.queues.dequeue(ticket, now)
        ticket.transition(_RELEASE)
        self._stop_waiting(ticket)
        ticket.counters.cancelled += 1
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE), *self.dispatch(now)]

    def adopt(self, ticket: Ticket) -> None:
        """A request that other rules let in, in the state in which it is; those who queue, in the order they stand in."""
        ticket.lane = self.rules.lane_of[ticket.priority_class]
        if ticket.state in SLOT_HOLDING_STATES:
            self.priority.set_slot_units(ticket)
            self._take_slot(ticket)
        else:
            self.queues.adopt(ticket)
            self.waiting += 1

    # Whoever waits.

    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiters while slots are free for them."""
        self.dispatched_at = now
        admitted: list[Decision] = []
        while self.waiting and self.slots.in_use < self.slots.capacity:
            if self._bucket is not None and not self._bucket.has_token(now):
                break
            regular = self.priority.next_waiter()
            starved = self.priority.next_promotion(regular, now)
            if starved is not None:
                self.promotion_budget.count_promotion()
                starved.promoted = True
                starved.counters.promoted += 1
                admitted.append(self._admit_waiter(starved, Reason.STARVED, now))
            elif regular is not None:
                admitted.append(self._admit_waiter(regular, _SLOT_FREE, now))
            else:
                break
        return admitted

    def _admit_waiter(self, ticket: Ticket, reason: Reason, now: Micros) -> Decision:
        """A waiter gets a slot."""
        if ticket.state is _AWAITING:
            self.queues.pending_preemptors.remove(ticket)
        else:
            self.queues.dequeue_admitted(ticket, now)
            self.promotion_budget.count_admission()
        self._stop_waiting(ticket)
        return self._admit(ticket, reason, now)

    def unblock_tenant(self, tenant: str) -> None:
        self.queues.unblock_tenant(tenant)

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros:
        if self.rules.fixed_retry_after is not None:
            return self.rules.fixed_retry_after
        lane = ticket.lane
        return self.retry_estimators[lane].estimate(len(self.queues.lanes[lane]), now, self.rules.lanes[lane].queue_timeout)

    # Preemption.

    def _preempt(self, victim: Ticket, ticket: Ticket, now: Micros) -> list[Decision]:
        victim.transition(TicketEvent.PREEMPT_SLOT)
        self.victims.discard(victim)
        victim.counters.preempted_by[ticket.priority_class] += 1
        victim.preemption_peer, ticket.preemption_peer = ticket, victim
        ticket.transition(TicketEvent.AWAIT)
        ticket.sequence_number = self._sequence_numbers.next_back()
        self._start_waiting(ticket)
        self.queues.pending_preemptors.add(ticket)
        return [
            Decision(now, victim.id, Action.PREEMPT_SLOT, Reason.HIGHER_CLASS, ticket.id),
            Decision(now, ticket.id, Action.QUEUE, Reason.VICTIM_LEAVING, victim.id),
        ]

    def _release_holder(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        """A slot is free: for whom it was kept, and else for whoever is next."""
        preemptor = ticket.preemption_peer
        self._release_slot(ticket, now)
        decisions = []
        if ticket.state is _VICTIM and self._may_retry(ticket, release_reason, now):
            decisions.append(self._retry(ticket, now))
        else:
            ticket.counters.ended[ReleaseReason.SLOT_PREEMPTED if ticket.state is _VICTIM else release_reason] += 1
            ticket.transition(_RELEASE)
        if preemptor is not None:
            ticket.preemption_peer = preemptor.preemption_peer = None
            if self.priority.can_take_slot(preemptor):
                self.queues.pending_preemptors.remove(preemptor)
                self._stop_waiting(preemptor)
                decisions.append(self._admit(preemptor, Reason.VICTIM_GONE, now, ticket.id))
        return decisions + self.dispatch(now) if self.waiting else decisions

    def _may_retry(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> bool:
        if release_reason is not ReleaseReason.SLOT_PREEMPTED or not self.rules.retries_victims:
            return False
        return ticket.submitted_at + self.rules.lanes[ticket.lane].queue_timeout > now

    def _retry(self, ticket: Ticket, now: Micros) -> Decision:
        ticket.transition(TicketEvent.RETRY)
        ticket.retried = True
        ticket.counters.retried += 1
        self._start_waiting(ticket)
        self.queues.requeue_front(ticket, now)
        return Decision(now, ticket.id, Action.QUEUE, Reason.TO_BE_RETRIED)

    # Time.

    def next_deadline(self) -> Micros | None:
        if not self.waiting:
            return None
        soon, timeout = self.next_admission_at(), self.queues.next_deadline()
        if soon is None or timeout is None:
            return timeout if soon is None else soon
        return min(soon, timeout)

    def next_admission_at(self) -> Micros | None:
        """When time may let somebody into a slot that idles beside him: he starves, or the bucket fills."""
        if not self.waiting or self.slots.in_use >= self.slots.capacity:
            return None
        due = self.queues.starvation.next_starvation_after(self.dispatched_at)
        if self._bucket is not None:
            ready = self._bucket.next_token_at(self.dispatched_at)
            due = ready if due is None else min(due, ready)
        return due if due is None or due > self.dispatched_at else None

    def deadline_of(self, ticket: Ticket) -> Micros:
        return self.queues.deadline_of(ticket)

    def advance(self, now: Micros) -> list[Decision]:
        """Timeouts, and preemptors whose budget is spent; then whoever may enter for that."""
        done: list[Decision] = []
        waiters = self.queues
        for lane in MOST_URGENT_FIRST:
            while (waiter := waiters.expired_waiter(lane, now)) is not None:
                done.append(self._expire_waiter(waiter, now))
            while waiters.pending_preemptors.count and (preemptor := waiters.expired_preemptor(lane, now)) is not None:
                done.append(self._expire_preemptor(preemptor, now))
        return done + self.dispatch(now)

    def _expire_waiter(self, ticket: Ticket, now: Micros) -> Decision:
        self.queues.dequeue(ticket, now)
        self._stop_waiting(ticket)
        return self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def _expire_preemptor(self, ticket: Ticket, now: Micros) -> Decision:
        self.queues.pending_preemptors.remove(ticket)
        if self.queues.is_lane_full(ticket.lane):
            self._stop_waiting(ticket)
            return self._reject(ticket, Reason.QUEUE_FULL, now)
        ticket.transition(_QUEUE)
        self.queues.enqueue(ticket, now)
        return Decision(now, ticket.id, Action.QUEUE, Reason.BUDGET_SPENT)

    # Looking.

    def rate_allows(self, now: Micros) -> bool:
        """Whether the rate lets somebody in."""
        return self._bucket is None or self._bucket.has_token(now)

    def find_violations(self) -> Iterable[str]:
        return class_pool_violations(self)
