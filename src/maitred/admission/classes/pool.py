"""ClassPool: the slots of one model, and the queues of the classes in front of them.

A newcomer is admitted if a slot is free for its class and no request of its own class or of a higher one waits before it. If
it finds no slot and its class may preempt, it takes the slot of a request of a lower class that has no response yet: the
victim is told to stop, and the slot is kept for its preemptor. Else the newcomer queues; else, the queue being full, it is
rejected.

Whenever slots may have become free, waiting requests are admitted, the most urgent class first, until no slot is free for any
of them. Then the next one preempts, if its class may, as a newcomer would, and so on while there are victims. A request that
starves may be promoted (`priority`). So after every event:

    no request waits while a slot is free for its class, unless its tenant is at its limit or a larger one starves
    none that is next and may preempt waits while a victim's slot would do

Example: 2 slots without reservations, both held by bulk requests, b1 and then b2. The chat c1 finds no slot and preempts b2,
the newer one; c2 preempts b1; c3 finds no victim and queues. When b2 has stopped, its slot is c1's, and that of b1 is c2's.

Without classes (modes `off`, `legacy`) all share one lane, and a rate may limit how they enter. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from maitred.admission.classes.adaptive_reserve import AdaptiveReserve
from maitred.admission.classes.lead_watch import LEAD_TIME, LeadWatch
from maitred.admission.classes.priority import CURED_BY_PREEMPTION, AdmissionPriority, PromotionBudget
from maitred.admission.learned_slots.signals import NO_DEMAND, PoolDemand
from maitred.admission.pool.agenda import Agenda
from maitred.admission.pool.slot_pool import SlotPool
from maitred.admission.terms.enums import Action, Reason, ReleaseReason
from maitred.admission.terms.rules import MOST_URGENT_FIRST, PoolRules
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState
from maitred.admission.waiting.pool_queues import PoolQueues
from maitred.admission.waiting.preemption import LeavingVictims, link_peers, may_hold, unlink_peers
from maitred.admission.waiting.queues import SequenceNumbers
from maitred.admission.waiting.token_bucket import TokenBucket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.units import Micros

# Members of enums are slow to look up.
_AWAIT, _PREEMPT, _QUEUE, _RELEASE = TicketEvent.AWAIT, TicketEvent.PREEMPT_SLOT, TicketEvent.QUEUE, TicketEvent.RELEASE
_AWAITING, _QUEUED, _VICTIM = TicketState.AWAITING, TicketState.QUEUED, TicketState.VICTIM
_PREEMPTION, _QUEUING = Action.PREEMPT_SLOT, Action.QUEUE
_HIGHER_CLASS, _SLOT_FREE, _TENANT_LIMIT = Reason.HIGHER_CLASS, Reason.SLOT_FREE, Reason.TENANT_LIMIT
_VICTIM_GONE, _VICTIM_LEAVING = Reason.VICTIM_GONE, Reason.VICTIM_LEAVING


class ClassPool(SlotPool):
    """The slots and queues of one model, or of all models together."""

    def __init__(self, name: str, rules: PoolRules, sequence_numbers: SequenceNumbers, agenda: Agenda) -> None:
        super().__init__(name, rules, sequence_numbers, agenda)
        self.queues = PoolQueues(rules, sequence_numbers, self.retry_estimators)
        self.promotion_budget = PromotionBudget(rules.promotion_share, rules.promotion_burst)
        self.priority = AdmissionPriority(rules, self.slots, self.queues, self.promotion_budget)
        self.dispatched_at: Micros = 0
        """When `dispatch` was last called: requests that starved by then have been considered for a promotion."""
        self.reserve = AdaptiveReserve(rules, self.slots, self.victims) if rules.adapts_reservations else None
        self.lead = LeadWatch()
        self._bucket = TokenBucket(rules.rate, rules.burst) if rules.rate else None
        self._may_preempt = any(lane.can_preempt for lane in rules.lanes)
        self._leaving = LeavingVictims()
        self._reorders = rules.tenant_weights is not None
        """Whether a newcomer may become the next request of its lane, in place of one that is too large or keeps slots back."""
        self.resize(0)

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """Admit, queue or reject a newcomer; or let it wait for a victim, on which the first decision is then."""
        lane = ticket.lane = ticket.victim_group = self.rules.lane_of[ticket.priority_class]
        ticket.submitted_at = now
        ticket.counters.arrived += 1
        if self.reserve is not None and not self.waiting:  # While requests wait, `dispatch` does it, and lets them in.
            self.reserve.review(now)
        units = self.priority.set_slot_units(ticket)
        blocked_by = self.priority.blocking_reason(ticket, now)
        if self.reserve is not None and blocked_by is not _TENANT_LIMIT:
            self.reserve.on_arrival(lane, units, now)
        if blocked_by is None and self._bucket is not None and not self._bucket.has_token(now):
            blocked_by = Reason.BUCKET_EMPTY  # Taken in `_admit`, because a request that queues pays when it enters.
        if blocked_by is None:
            admitted = self._admit_to_free_slot(ticket, now) if self.slots.lead else self._admit(ticket, _SLOT_FREE, now)
            # What victims are about to leave may have been enough for a less urgent preemptor, and be too little now.
            preempts = self.queues.queued and self._leaving.units
            return [admitted, *self.dispatch(now)] if preempts else [admitted]
        # A preemptor joins no queue, so a full queue must not keep it from a victim: preemption is tried first.
        if blocked_by in CURED_BY_PREEMPTION and self.rules.lanes[lane].can_preempt:
            victim = self.priority.choose_victim(ticket, self.victims, self._leaving.units)
            if victim is not None:
                return self._preempt(victim, ticket, now)
        if ticket.tenant_account is not None and ticket.tenant_account.queue_full:
            return [self._reject(ticket, Reason.TENANT_QUEUE_FULL, now)]
        if self.queues.is_lane_full(lane):
            return [self._reject(ticket, Reason.QUEUE_FULL, now)]
        ticket.transition(_QUEUE)
        self._start_waiting(ticket)
        self.queues.enqueue(ticket, now)
        dispatched = self.dispatch(now) if blocked_by is Reason.BEHIND_QUEUE and self._reorders else []
        if ticket.state is not _QUEUED:
            return dispatched
        self._agenda.schedule(self.queues.deadline_of(ticket))
        if self.slots.in_use < self.slots.capacity:
            self.schedule_waiters()
        return [Decision(now, ticket.id, _QUEUING, blocked_by), *dispatched]

    def release(self, ticket: Ticket, release_reason: ReleaseReason, now: Micros) -> list[Decision]:
        if ticket.state in SLOT_HOLDING_STATES:
            preemptor, was_victim = ticket.preemption_peer, ticket.state is _VICTIM
            self._free_slot(ticket, now)
            decisions = self._end_or_retry(ticket, release_reason, now)
            if was_victim:
                if preemptor is None:
                    self._leaving.update(ticket)
                self.lead.on_victim_left(ticket)
            if self.lead.watched:
                self.lead.on_freed(ticket.slot_units)
            if preemptor is not None:
                # Before `dispatch`, which would give the slot to a more urgent request that has begun to wait meanwhile.
                unlink_peers(ticket)
                decisions += self._admit_preemptor(preemptor, ticket, now)
            elif self.reserve is not None:  # A victim's slot is its preemptor's, and fills nothing that is missing.
                self.reserve.on_freed(ticket.slot_units, now)
            if ticket.tenant_account is not None:
                self._agenda.note_freed(ticket.tenant_account, self.name)
            return decisions + self.dispatch(now) if self.waiting else decisions
        if ticket.state is _AWAITING:
            self._drop_claim(ticket)
        else:
            self.queues.dequeue(ticket, now)
        ticket.transition(_RELEASE)
        self._stop_waiting(ticket)
        ticket.counters.cancelled += 1
        # CLIENT_GONE whatever `release_reason` says: see `Reason.CLIENT_GONE`.
        self._agenda.note_freed(ticket.tenant_account, self.name)
        # The request may have been a head that was too large for the free slots, and then it held back all behind it.
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE), *self.dispatch(now)]

    def settle(self, ticket: Ticket, tokens: int) -> None:
        self.queues.lanes[ticket.lane].settle(ticket, tokens)

    def adopt(self, ticket: Ticket) -> None:
        super().adopt(ticket)
        self._leaving.update(ticket)

    def _adopt_waiter(self, ticket: Ticket) -> None:
        self.queues.adopt(ticket)
        self._start_waiting(ticket)

    def _victim_group(self, ticket: Ticket) -> int | None:
        """Return the lane: victims are chosen by class. Promoted requests are exempt: they have waited long enough."""
        return None if ticket.promoted else ticket.lane

    def _set_slot_units(self, ticket: Ticket) -> None:
        self.priority.set_slot_units(ticket)

    def inherit_from(self, previous: SlotPool) -> None:
        super().inherit_from(previous)
        if isinstance(previous, ClassPool):
            self.lead, self.watches_lead = previous.lead, previous.watches_lead
            if self.reserve is not None and previous.reserve is not None:
                self.reserve.inherit_from(previous.reserve)

    def _requeue_front(self, ticket: Ticket, now: Micros) -> None:
        self._start_waiting(ticket)
        self.queues.requeue_front(ticket, now)
        self._agenda.schedule(self.queues.deadline_of(ticket))

    def dispatch(self, now: Micros) -> list[Decision]:
        self.dispatched_at = now
        if self.reserve is not None:
            self.reserve.review(now)
        decisions = self._admit_waiters(now) if self.slots.in_use < self.slots.capacity else []
        if self.watches_lead:
            while (overdue := self.lead.pop_overdue(now)) is not None:
                decisions += self._preempt_for_lead(*overdue, now)
            self.watches_lead = bool(self.lead.watched)
        while self._may_preempt and self.queues.queued and (waiter := self.priority.next_preemptor()) is not None:
            if (victim := self.priority.choose_victim(waiter, self.victims, self._leaving.units)) is None:
                break
            decisions += self._preempt_for_waiter(victim, waiter, now)
            decisions += self._admit_waiters(now)  # Its tenant may be at its limit now, and a request behind its own may fit.
        if self._agenda.is_open:  # Only later, because who is next depends on what tenants take in other pools.
            self._agenda.unscheduled[self.name] = None
        elif self.waiting and self.slots.in_use < self.slots.capacity:
            self.schedule_waiters()
        return decisions

    def schedule_waiters(self) -> None:
        self._agenda.schedule(self._next_admission_at())

    def _admit_waiters(self, now: Micros) -> list[Decision]:
        admitted: list[Decision] = []
        while self.waiting and self.slots.in_use < self.slots.capacity:
            if self._bucket is not None and not self._bucket.has_token(now):
                break
            # The next request by class is found first: if it is the starved one, its admission costs no promotion (but see
            # `promotes_next_waiter`).
            regular = self.priority.next_waiter()
            starved = self.priority.next_promotion(regular, now)
            if starved is not None and starved.slot_units <= self.slots.idle:
                # The slot of a promoted request is safe: otherwise the class that it passed could take it back at once.
                self.promotion_budget.count_promotion()
                starved.promoted, starved.victim_group = True, None
                starved.counters.promoted += 1
                admitted.append(self._admit_waiter(starved, Reason.STARVED, now))
            elif regular is not None and (starved is None or self.priority.may_pass(regular, starved)):
                admitted.append(self._admit_waiter(regular, _SLOT_FREE, now))
            else:
                break
        return admitted

    def _admit_waiter(self, ticket: Ticket, reason: Reason, now: Micros) -> Decision:
        if ticket.state is _AWAITING:  # Another slot has become free before that of its victim.
            self._drop_claim(ticket)
        else:
            self.queues.dequeue_admitted(ticket, now)
            self.promotion_budget.count_admission()
        self._stop_waiting(ticket)
        is_plain = not self.slots.lead or reason is not _SLOT_FREE
        return self._admit(ticket, reason, now) if is_plain else self._admit_to_free_slot(ticket, now)

    def _admit_to_free_slot(self, ticket: Ticket, now: Micros) -> Decision:
        """Admit a request where there is a lead, and watch it if its slot is one of that."""
        is_watched = self.rules.lanes[ticket.lane].can_preempt and self._watch_lead(ticket, now)
        return self._admit(ticket, Reason.LEAD_FREE if is_watched else _SLOT_FREE, now)

    def _watch_lead(self, ticket: Ticket, now: Micros) -> bool:
        """Watch a request that is about to take a slot, and return True, if that slot is one of the lead."""
        if (units_ahead := self.slots.units_beyond(ticket.slot_units)) <= 0:
            return False
        self.lead.add(ticket, units_ahead)
        self.watches_lead = True
        self._agenda.schedule(now + LEAD_TIME)
        return True

    def on_tenant_slot_freed(self, tenant: str) -> None:
        for queue in self.queues.lanes:
            queue.put_back_tenant(tenant)

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros:
        if self.rules.fixed_retry_after is not None:
            return self.rules.fixed_retry_after
        lane = ticket.lane
        return self.retry_estimators[lane].estimate(len(self.queues.lanes[lane]), now, self.rules.lanes[lane].queue_timeout)

    def demand(self) -> PoolDemand:
        keeps_lead = self._may_preempt and self.rules.adapts_reservations
        return self.priority.demand(keeps_lead=keeps_lead) if self.waiting else NO_DEMAND

    def _preempt_for_waiter(self, victim: Ticket, waiter: Ticket, now: Micros) -> list[Decision]:
        self.queues.dequeue_admitted(waiter, now)
        self._stop_waiting(waiter)
        return self._preempt(victim, waiter, now)

    def _preempt_for_lead(self, overdue: Ticket, units: int, now: Micros) -> list[Decision]:
        """Stop as many victims as must leave before `overdue` has a place in its engine, unless some are leaving already."""
        if self._leaving.units:
            return []
        decisions: list[Decision] = []
        for _ in range(self.slots.num_slots(min(units, self.slots.units_beyond()))):  # some may be idle by now
            if (victim := self.victims.newest_below(overdue.lane, overdue.slot_units)) is None:
                break
            self._stop_victim(victim, overdue)
            self._leaving.update(victim)
            self.lead.on_victim(victim, overdue)
            decisions.append(Decision(now, victim.id, _PREEMPTION, _HIGHER_CLASS, overdue.id))
        return decisions

    def _stop_victim(self, victim: Ticket, preemptor: Ticket) -> None:
        victim.transition(_PREEMPT)
        self.victims.discard(victim)
        victim.counters.preempted_by[preemptor.priority_class] += 1

    def _preempt(self, victim: Ticket, preemptor: Ticket, now: Micros) -> list[Decision]:
        preemptor.transition(_AWAIT)
        preemptor.queued_at = now
        preemptor.sequence_number = self._sequence_numbers.next_back()
        self._start_waiting(preemptor)
        self.queues.pending_preemptors.add(preemptor)
        if preemptor.tenant_account is not None:
            self._agenda.note_taken(preemptor.tenant_account, self.name)
        self._agenda.schedule(self.queues.deadline_of(preemptor))
        return self._claim_slot(victim, preemptor, now)

    def _claim_slot(self, victim: Ticket, preemptor: Ticket, now: Micros) -> list[Decision]:
        self._stop_victim(victim, preemptor)
        link_peers(victim, preemptor)
        return [
            Decision(now, victim.id, _PREEMPTION, _HIGHER_CLASS, preemptor.id),
            Decision(now, preemptor.id, _QUEUING, _VICTIM_LEAVING, victim.id),
        ]

    def on_declined(self, victim: Ticket, now: Micros) -> list[Decision]:
        preemptor = victim.preemption_peer
        unlink_peers(victim)
        self._leaving.update(victim)
        self.watches_lead |= self.lead.on_declined(victim)
        decisions = [] if preemptor is None else self._claim_another_slot(preemptor, now)
        return decisions + self.dispatch(now)

    def _claim_another_slot(self, preemptor: Ticket, now: Micros) -> list[Decision]:
        """Stop the next victim for a preemptor, whose budget goes on; or let it queue, if there is none."""
        victim = self.priority.choose_next_victim(preemptor, self.victims, self._leaving.units)
        if victim is None:
            return [self._fall_back_to_queue(preemptor, Reason.VICTIM_DECLINED, now)]
        return self._claim_slot(victim, preemptor, now)

    def _admit_preemptor(self, preemptor: Ticket, victim: Ticket, now: Micros) -> list[Decision]:
        """Give a preemptor the slot of its victim, which has left; or let it queue, if it no longer fits (after a shrink)."""
        if not self.priority.can_take_slot(preemptor):
            return [self._fall_back_to_queue(preemptor, Reason.NO_SLOT if may_hold(preemptor) else Reason.TENANT_LIMIT, now)]
        self.queues.pending_preemptors.remove(preemptor)
        self._stop_waiting(preemptor)
        if self.slots.lead:
            self._watch_lead(preemptor, now)
        return [self._admit(preemptor, _VICTIM_GONE, now, victim.id)]

    def _drop_claim(self, preemptor: Ticket) -> None:
        """Cut a preemptor off from its victim: the victim's slot goes to whichever request is next then."""
        self.queues.pending_preemptors.remove(preemptor)
        victim = preemptor.preemption_peer
        unlink_peers(preemptor)
        if victim is not None:
            self._leaving.update(victim)
        if preemptor.tenant_account is not None:
            self.on_tenant_slot_freed(preemptor.tenant_account.name)

    def _fall_back_to_queue(self, preemptor: Ticket, reason: Reason, now: Micros) -> Decision:
        """Let a preemptor queue, first in its class; or reject it, if it has not queued before and the queue is full."""
        self._drop_claim(preemptor)
        self._agenda.note_freed(preemptor.tenant_account, self.name)
        if preemptor.queued_at == preemptor.submitted_at and self.queues.is_lane_full(preemptor.lane):
            self._stop_waiting(preemptor)
            return self._reject(preemptor, Reason.QUEUE_FULL, now)
        preemptor.transition(_QUEUE)
        self.queues.requeue_front(preemptor, now)
        self._agenda.schedule(self.queues.deadline_of(preemptor))
        return Decision(now, preemptor.id, _QUEUING, reason)

    def set_stranded(self, ticket: Ticket, *, stranded: bool, now: Micros) -> list[Decision]:
        decisions: list[Decision] = []
        if stranded and ticket.preemption_peer is not None:
            decisions.append(self._fall_back_to_queue(ticket.preemption_peer, Reason.NO_SLOT, now))
        ticket.stranded = stranded
        self._leaving.update(ticket)  # Before `dispatch`, which stops no second victim for what is leaving.
        return decisions + super().set_stranded(ticket, stranded=stranded, now=now)

    def next_deadline(self) -> Micros | None:
        due = self.lead.next_due_at if self.watches_lead else None
        for other in (self._next_admission_at(), self.queues.next_deadline()) if self.waiting else ():
            due = other if due is None or (other is not None and other < due) else due
        return due

    def _next_admission_at(self) -> Micros | None:
        """Return when a waiting request may get a slot that is idle now, because it starves or the token bucket fills."""
        if not self.waiting or self.slots.in_use >= self.slots.capacity:
            return None
        due = self.queues.starvation.next_starvation_after(self.dispatched_at)
        if self._bucket is not None:
            ready = self._bucket.next_token_at(self.dispatched_at)
            due = ready if due is None else min(due, ready)
        # What was due by the last `dispatch` was considered there. Reporting it again would hold the core at one instant.
        return due if due is None or due > self.dispatched_at else None

    def advance(self, now: Micros) -> list[Decision]:
        """Reject requests at their timeout, queue preemptors that have spent their budget, and admit what may enter then."""
        decisions: list[Decision] = []  # `list[Decision]()` takes thirty times as long
        # Waiting requests expire before preemptors of their lane, because a preemptor that has spent its budget may queue in
        # a place that a timeout has freed. All of it comes before `dispatch`, so that no expired request is admitted.
        for lane in MOST_URGENT_FIRST:
            while (waiter := self.queues.expired_waiter(lane, now)) is not None:
                decisions.append(self._expire_waiter(waiter, now))
            if self.queues.pending_preemptors.count:
                # The newest goes first, because each goes to the front of the queue.
                for preemptor in reversed(self.queues.expired_preemptors(lane, now)):
                    decisions.append(self._fall_back_to_queue(preemptor, Reason.BUDGET_SPENT, now))
        return decisions + self.dispatch(now)

    def _expire_waiter(self, ticket: Ticket, now: Micros) -> Decision:
        self.queues.dequeue(ticket, now)
        self._stop_waiting(ticket)
        return self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def find_violations(self) -> Iterator[str]:
        yield from self.slots.find_violations(keeps_exact_fit=self.rules.keeps_exact_fit)
        queues, preemptors = self.queues, self.queues.pending_preemptors
        if self.waiting != queues.queued + preemptors.count:
            yield f"{self.waiting} counted as waiting, {queues.queued} in queues and {preemptors.count} for victims"
        yield from queues.find_violations()
        if not self.promotion_budget.is_within_bounds:
            yield "more promotions than their share"
        rate_allows = self._bucket is None or self._bucket.has_token(self.dispatched_at)
        head = self.priority.next_waiter() if rate_allows else None
        if head is not None and self.priority.may_pass(head, self.priority.next_promotion(head, self.dispatched_at)):
            yield f"{head} waits while a slot is free for it"
        preemptor = self.priority.next_preemptor()
        if preemptor is not None and self.priority.choose_victim(preemptor, self.victims, self._leaving.units) is not None:
            yield f"{preemptor} waits, and could preempt"
        yield from self.victims.find_violations()
