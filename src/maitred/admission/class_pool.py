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

from maitred.admission.audit import problems
from maitred.admission.bucket import TokenBucket
from maitred.admission.pool import Pool
from maitred.admission.precedence import Precedence
from maitred.admission.promotions import Promotions
from maitred.admission.queues import Turns
from maitred.admission.rules import MOST_URGENT_FIRST, PoolRules
from maitred.admission.ticket import HOLDING, Event, State, Ticket
from maitred.admission.victims import Takeable
from maitred.admission.vocabulary import Action, End, Reason
from maitred.admission.waiters import Waiters
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.units import Micros

_QUEUE, _RELEASE = Event.QUEUE, Event.RELEASE  # members of enums are slow to look up
_AWAITING, _VICTIM = State.AWAITING, State.VICTIM
_SLOT_FREE = Reason.SLOT_FREE
_NO_ROOM = frozenset((Reason.NO_SLOT, Reason.HELD_BY_RESERVATION))
"""What a preemption can help against."""


class ClassPool(Pool):
    """One model's slots and queues, or those of all."""

    def __init__(self, name: str, rules: PoolRules, turns: Turns) -> None:
        super().__init__(name, rules, turns)
        self.waiters = Waiters(rules, turns, self.forecasts)
        self.promotions = Promotions(rules.promotion_share, rules.promotion_burst)
        self.precedence = Precedence(rules, self.slots, self.waiters, self.promotions)
        self.takeable: Takeable = Takeable()
        self.clock: Micros = 0
        """Who starved by then has been looked at."""
        self._bucket = TokenBucket(rules.rate, rules.burst) if rules.rate else None
        self.resize(0)

    # Coming and leaving.

    def enter(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """A newcomer: admitted, queued or rejected; or it awaits a victim, who is told first."""
        lane = ticket.lane = self.rules.lane_of[ticket.priority_class]
        ticket.submitted_at = now
        ticket.totals.arrived += 1
        obstacle = self.precedence.obstacle(ticket)
        if obstacle is None and self._bucket is not None and not self._bucket.ready(now):
            obstacle = Reason.RATE_LIMIT
        if obstacle is None:
            return [self._admit(ticket, _SLOT_FREE, now)]
        if obstacle in _NO_ROOM and self.rules.lanes[lane].can_preempt:
            victim = self.precedence.victim_for(ticket, self.takeable)
            if victim is not None:
                return self._preempt(victim, ticket, now)
        if ticket.share is not None and ticket.share.queue_full:
            return [self._reject(ticket, Reason.TENANT_QUEUE_FULL, now)]
        if self.waiters.queue_full(lane):
            return [self._reject(ticket, Reason.QUEUE_FULL, now)]
        ticket.on(_QUEUE)
        self._wait(ticket)
        self.waiters.join(ticket, now)
        return [Decision(now, ticket.id, Action.QUEUE, obstacle)]

    def leave(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        """It is released: from the queue, or from its slot, which passes on. A victim that is tried again has not left."""
        if ticket.state in HOLDING:
            return self._give_back(ticket, end, now)
        if ticket.state is _AWAITING:
            self.waiters.awaiting.remove(ticket)
        else:
            self.waiters.leave(ticket, now)
        ticket.on(_RELEASE)
        self._wait_no_more(ticket)
        ticket.totals.cancelled += 1
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE), *self.dispatch(now)]

    def adopt(self, ticket: Ticket) -> None:
        """A request that other rules let in, in the state in which it is; those who queue, in the order they stand in."""
        ticket.lane = self.rules.lane_of[ticket.priority_class]
        if ticket.state in HOLDING:
            self.precedence.charge(ticket)
            self._hold(ticket)
        else:
            self.waiters.adopt(ticket)
            self.waiting += 1

    # Whoever waits.

    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiters while slots are free for them."""
        self.clock = now
        admitted: list[Decision] = []
        while self.waiting and self.slots.used < self.slots.capacity:
            if self._bucket is not None and not self._bucket.ready(now):
                break
            regular = self.precedence.next_in_order()
            starved = self.precedence.starved(regular, now)
            if starved is not None:
                self.promotions.promote()
                starved.promoted = True
                starved.totals.promoted += 1
                admitted.append(self._dispatch(starved, Reason.STARVED, now))
            elif regular is not None:
                admitted.append(self._dispatch(regular, _SLOT_FREE, now))
            else:
                break
        return admitted

    def _dispatch(self, ticket: Ticket, reason: Reason, now: Micros) -> Decision:
        """A waiter gets a slot."""
        if ticket.state is _AWAITING:
            self.waiters.awaiting.remove(ticket)
        else:
            self.waiters.serve(ticket, now)
            self.promotions.dispatch()
        self._wait_no_more(ticket)
        return self._admit(ticket, reason, now)

    def unblock(self, tenant: str) -> None:
        self.waiters.unblock(tenant)

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros:
        if self.rules.retry_after is not None:
            return self.rules.retry_after
        lane = ticket.lane
        return self.forecasts[lane].promise(len(self.waiters.queues[lane]), now, self.rules.lanes[lane].timeout)

    # Preemption.

    def _preempt(self, victim: Ticket, ticket: Ticket, now: Micros) -> list[Decision]:
        victim.on(Event.PREEMPT)
        self.takeable.discard(victim)
        victim.totals.preempted_by[ticket.priority_class] += 1
        victim.other, ticket.other = ticket, victim
        ticket.on(Event.AWAIT)
        ticket.turn = self._turns.last()
        self._wait(ticket)
        self.waiters.awaiting.add(ticket)
        return [
            Decision(now, victim.id, Action.PREEMPT, Reason.HIGHER_CLASS, ticket.id),
            Decision(now, ticket.id, Action.QUEUE, Reason.VICTIM_LEAVING, victim.id),
        ]

    def _give_back(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        """A slot is free: for whom it was kept, and else for whoever is next."""
        preemptor = ticket.other
        self._release(ticket, now)
        decisions = []
        if ticket.state is _VICTIM and self._comes_back(ticket, end, now):
            decisions.append(self._retry(ticket, now))
        else:
            ticket.totals.ended[End.PREEMPTED if ticket.state is _VICTIM else end] += 1
            ticket.on(_RELEASE)
        if preemptor is not None:
            ticket.other = preemptor.other = None
            if self.precedence.may_follow(preemptor):
                self.waiters.awaiting.remove(preemptor)
                self._wait_no_more(preemptor)
                decisions.append(self._admit(preemptor, Reason.VICTIM_GONE, now, ticket.id))
        return decisions + self.dispatch(now) if self.waiting else decisions

    def _comes_back(self, ticket: Ticket, end: End, now: Micros) -> bool:
        if end is not End.PREEMPTED or not self.rules.retries:
            return False
        return ticket.submitted_at + self.rules.lanes[ticket.lane].timeout > now

    def _retry(self, ticket: Ticket, now: Micros) -> Decision:
        ticket.on(Event.RETRY)
        ticket.retried = True
        ticket.totals.retried += 1
        self._wait(ticket)
        self.waiters.rejoin(ticket, now)
        return Decision(now, ticket.id, Action.QUEUE, Reason.TO_BE_RETRIED)

    # Time.

    def next_due(self) -> Micros | None:
        if not self.waiting:
            return None
        soon, timeout = self.soon(), self.waiters.next_time()
        if soon is None or timeout is None:
            return timeout if soon is None else soon
        return min(soon, timeout)

    def soon(self) -> Micros | None:
        """When time may let somebody into a slot that idles beside him: he starves, or the bucket fills."""
        if not self.waiting or self.slots.used >= self.slots.capacity:
            return None
        due = self.waiters.starving.next_after(self.clock)
        if self._bucket is not None:
            ready = self._bucket.ready_at(self.clock)
            due = ready if due is None else min(due, ready)
        return due if due is None or due > self.clock else None

    def first_due(self, ticket: Ticket) -> Micros:
        return self.waiters.time_of(ticket)

    def fire(self, now: Micros) -> list[Decision]:
        """Timeouts, and preemptors whose budget is spent; then whoever may enter for that."""
        done: list[Decision] = []
        waiters = self.waiters
        for lane in MOST_URGENT_FIRST:
            while (waiter := waiters.overdue(lane, now)) is not None:
                done.append(self._time_out(waiter, now))
            while waiters.awaiting.count and (preemptor := waiters.overdue_preemptor(lane, now)) is not None:
                done.append(self._budget_spent(preemptor, now))
        return done + self.dispatch(now)

    def _time_out(self, ticket: Ticket, now: Micros) -> Decision:
        self.waiters.leave(ticket, now)
        self._wait_no_more(ticket)
        return self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def _budget_spent(self, ticket: Ticket, now: Micros) -> Decision:
        self.waiters.awaiting.remove(ticket)
        if self.waiters.queue_full(ticket.lane):
            self._wait_no_more(ticket)
            return self._reject(ticket, Reason.QUEUE_FULL, now)
        ticket.on(_QUEUE)
        self.waiters.join(ticket, now)
        return Decision(now, ticket.id, Action.QUEUE, Reason.BUDGET_SPENT)

    # Looking.

    def open_at(self, now: Micros) -> bool:
        """Whether the rate lets somebody in."""
        return self._bucket is None or self._bucket.ready(now)

    def problems(self) -> Iterable[str]:
        return problems(self)
