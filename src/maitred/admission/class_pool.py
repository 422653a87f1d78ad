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
from maitred.admission.promotions import Promotions
from maitred.admission.queues import LaneQueue, Turns
from maitred.admission.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.starving import Starving
from maitred.admission.ticket import HOLDING, Event, State, Ticket
from maitred.admission.victims import Awaiting, Takeable
from maitred.admission.vocabulary import Action, End, Reason
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.units import Micros

_NO_ROOM = frozenset((Reason.NO_SLOT, Reason.HELD_BY_RESERVATION))
"""What a preemption can help against."""


class ClassPool(Pool):
    """One model's slots and queues, or those of all."""

    def __init__(self, name: str, rules: PoolRules, turns: Turns) -> None:
        super().__init__(name, rules, turns)
        self.queues = [LaneQueue(turns, rules.weights) for _ in LANES]
        self.awaiting = Awaiting()
        self.takeable: Takeable = Takeable()
        self.promotions = Promotions(rules.promotion_share, rules.promotion_burst)
        self.clock: Micros = 0
        """Who starved by then has been looked at."""
        self._bucket = TokenBucket(rules.rate, rules.burst) if rules.rate else None
        self._starving = Starving(self.queues, rules.lanes)
        self.resize(0)

    # Coming and leaving.

    def enter(self, ticket: Ticket, now: Micros, load: FleetLoad) -> list[Decision]:
        """A newcomer: admitted, queued or rejected; or it awaits a victim, who is told first."""
        lane = ticket.lane = self.rules.lane_of[ticket.priority_class]
        ticket.submitted_at = now
        ticket.totals.arrived += 1
        obstacle = self._obstacle(ticket, now)
        if obstacle is None:
            return [self._admit(ticket, Reason.SLOT_FREE, now)]
        if obstacle in _NO_ROOM and self.rules.lanes[lane].can_preempt:
            victim = None if ticket.share is not None and ticket.share.spoken_for else self._victim_for(ticket)
            if victim is not None:
                return self._preempt(victim, ticket, now)
        if ticket.share is not None and ticket.share.queue_full:
            return [self._reject(ticket, Reason.TENANT_QUEUE_FULL, now)]
        if len(self.queues[lane]) >= self.rules.lanes[lane].queue_size:
            return [self._reject(ticket, Reason.QUEUE_FULL, now)]
        ticket.on(Event.QUEUE)
        self._wait(ticket)
        self._join(ticket, now)
        return [Decision(now, ticket.id, Action.QUEUE, obstacle)]

    def leave(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        """It is released: from the queue, or from its slot, which passes on. A victim that is tried again has not left."""
        if ticket.state in HOLDING:
            return self._give_back(ticket, end, now)
        if ticket.state is State.AWAITING:
            self.awaiting.remove(ticket)
        else:
            self._unqueue(ticket, now)
            self.forecasts[ticket.lane].left(now)
        ticket.on(Event.RELEASE)
        self._wait_no_more(ticket)
        ticket.totals.cancelled += 1
        return [Decision(now, ticket.id, Action.CANCEL, Reason.CLIENT_GONE), *self.dispatch(now)]

    def adopt(self, ticket: Ticket) -> None:
        """A request that other rules let in, in the state in which it is; those who queue, in the order they stand in."""
        lane = ticket.lane = self.rules.lane_of[ticket.priority_class]
        if ticket.state in HOLDING:
            self._charge(ticket)
            self._hold(ticket)
        elif ticket.state is State.AWAITING:
            self.awaiting.add(ticket)
            self.waiting += 1
        else:
            if not self.queues[lane]:
                self.forecasts[lane].began(ticket.queued_at)
            self.queues[lane].restore(ticket)
            self._starving.joined(ticket)
            self.waiting += 1

    # Who may enter.

    def _obstacle(self, ticket: Ticket, now: Micros) -> Reason | None:
        """Why a newcomer cannot be admitted; None: it can."""
        if ticket.share is not None and ticket.share.at_limit:
            return Reason.TENANT_LIMIT
        if self.waiting and any(self.queues[c].peek() is not None for c in range(ticket.lane, len(LANES))):
            return Reason.BEHIND_QUEUE
        slots = self.slots
        if not slots.fits(ticket.lane, self._charge(ticket)):
            if not slots.capacity:
                return Reason.NO_CAPACITY
            return Reason.HELD_BY_RESERVATION if slots.used < slots.capacity else Reason.NO_SLOT
        if self.waiting and self.awaiting.any_from(ticket.lane):
            return Reason.BEHIND_QUEUE
        return None if self._bucket is None or self._bucket.ready(now) else Reason.RATE_LIMIT

    def _charge(self, ticket: Ticket) -> int:
        """Units that it needs; of one that is larger than all its lane can ever have, all of that. Noted on the ticket."""
        by_request = self.rules.tokens_per_slot is None
        ticket.charge = 1 if by_request else max(1, min(ticket.cost, self.slots.reachable(ticket.lane)))
        return ticket.charge

    def dispatch(self, now: Micros) -> list[Decision]:
        """Admit waiters while slots are free for them."""
        self.clock = now
        admitted: list[Decision] = []
        while self.waiting and self.slots.used < self.slots.capacity:
            if self._bucket is not None and not self._bucket.ready(now):
                break
            regular = self.next_in_order()
            starved = self._starved(regular, now)
            if starved is not None:
                self.promotions.promote()
                starved.promoted = True
                starved.totals.promoted += 1
                admitted.append(self._dispatch(starved, Reason.STARVED, now))
            elif regular is not None:
                admitted.append(self._dispatch(regular, Reason.SLOT_FREE, now))
            else:
                break
        return admitted

    def open_at(self, now: Micros) -> bool:
        """Whether the rate lets somebody in."""
        return self._bucket is None or self._bucket.ready(now)

    def next_in_order(self) -> Ticket | None:
        """Whom the order of classes lets in next. Nobody passes a more urgent one who needs more than there is."""
        for lane in MOST_URGENT_FIRST:
            head = self._head(lane)
            if head is not None:
                return head if self.slots.fits(lane, self._charge(head)) else None
        return None

    def _head(self, lane: int) -> Ticket | None:
        """Who is next of one lane: a preemptor before those who queue, as he found no queue."""
        if self.awaiting.lanes[lane]:
            first = self.awaiting.ready(lane)
            if first is not None:
                return first
        return self.queues[lane].peek()

    def _starved(self, regular: Ticket | None, now: Micros) -> Ticket | None:
        """Who is to be promoted now: the head of the least urgent class that starves. Not who is next in any case."""
        if now < self._starving.since or not self.promotions.allowed:
            return None
        for head in self._starving.heads(now):
            if (head is not regular or self.rules.promotes_always) and self.slots.room >= self._charge(head):
                return head
        return None

    def _dispatch(self, ticket: Ticket, reason: Reason, now: Micros) -> Decision:
        """A waiter gets a slot."""
        if ticket.state is State.AWAITING:
            self.awaiting.remove(ticket)
        else:
            self._unqueue(ticket, now, served=True)
            self.forecasts[ticket.lane].moved(now)
            self.promotions.dispatch()
        self._wait_no_more(ticket)
        return self._admit(ticket, reason, now)

    # Preemption.

    def _victim_for(self, ticket: Ticket) -> Ticket | None:
        """Lowest class first, newest first; nobody whose slot would not help."""
        missing = self.slots.missing(ticket.lane, self._charge(ticket))
        if missing > 1 and self.rules.tokens_per_slot is None:
            return None  # no slot is more than one
        return self.takeable.newest(ticket.lane, missing)

    def _preempt(self, victim: Ticket, ticket: Ticket, now: Micros) -> list[Decision]:
        victim.on(Event.PREEMPT)
        self.takeable.discard(victim)
        victim.totals.preempted_by[ticket.priority_class] += 1
        victim.other, ticket.other = ticket, victim
        ticket.on(Event.AWAIT)
        ticket.turn = self._turns.last()
        self._wait(ticket)
        self.awaiting.add(ticket)
        return [
            Decision(now, victim.id, Action.PREEMPT, Reason.HIGHER_CLASS, ticket.id),
            Decision(now, ticket.id, Action.QUEUE, Reason.VICTIM_LEAVING, victim.id),
        ]

    def _give_back(self, ticket: Ticket, end: End, now: Micros) -> list[Decision]:
        """A slot is free: for whom it was kept, and else for whoever is next."""
        preemptor = ticket.other
        self._release(ticket, now)
        decisions = []
        if ticket.state is State.VICTIM and self._comes_back(ticket, end, now):
            decisions.append(self._retry(ticket, now))
        else:
            ticket.totals.ended[End.PREEMPTED if ticket.state is State.VICTIM else end] += 1
            ticket.on(Event.RELEASE)
        if preemptor is not None:
            ticket.other = preemptor.other = None
            if self._has_slot_for(preemptor):
                self.awaiting.remove(preemptor)
                self._wait_no_more(preemptor)
                decisions.append(self._admit(preemptor, Reason.VICTIM_GONE, now, ticket.id))
        return decisions + self.dispatch(now) if self.waiting else decisions

    def _has_slot_for(self, ticket: Ticket) -> bool:
        if ticket.share is not None and ticket.share.at_limit:
            return False
        return self.slots.fits(ticket.lane, self._charge(ticket))

    def _comes_back(self, ticket: Ticket, end: End, now: Micros) -> bool:
        if end is not End.PREEMPTED or not self.rules.retries:
            return False
        return ticket.submitted_at + self.rules.lanes[ticket.lane].timeout > now

    def unblock(self, tenant: str) -> None:
        for queue in self.queues:
            queue.unblock(tenant)

    def _retry(self, ticket: Ticket, now: Micros) -> Decision:
        ticket.on(Event.RETRY)
        ticket.retried = True
        ticket.totals.retried += 1
        self._wait(ticket)
        self._join(ticket, now, front=True)
        return Decision(now, ticket.id, Action.QUEUE, Reason.TO_BE_RETRIED)

    # Waiting.

    def _join(self, ticket: Ticket, now: Micros, *, front: bool = False) -> None:
        ticket.queued_at = now
        queue = self.queues[ticket.lane]
        if not queue:
            self.forecasts[ticket.lane].began(now)
        if front:
            queue.push_front(ticket)
        else:
            queue.push(ticket)
        self._starving.joined(ticket)

    def _unqueue(self, ticket: Ticket, now: Micros, *, served: bool = False) -> None:
        queue = self.queues[ticket.lane]
        if served:
            queue.take(ticket)
        else:
            queue.remove(ticket)
        ticket.totals.queue_wait.observe(now - ticket.queued_at)

    def _retry_after(self, ticket: Ticket, now: Micros) -> Micros:
        if self.rules.retry_after is not None:
            return self.rules.retry_after
        lane = ticket.lane
        return self.forecasts[lane].promise(len(self.queues[lane]), now, self.rules.lanes[lane].timeout)

    # Time.

    def next_due(self) -> Micros | None:
        """When time alone changes something here; None: never."""
        if not self.waiting:
            return None
        due = self.soon()
        for lane in LANES:
            oldest = self.queues[lane].oldest()
            if oldest is not None:
                due = _earlier(due, oldest.submitted_at + self.rules.lanes[lane].timeout)
            preemptor = self.awaiting.first(lane) if self.awaiting.count else None
            if preemptor is not None:
                due = _earlier(due, preemptor.submitted_at + self.rules.budget)
        return due

    def soon(self) -> Micros | None:
        """When time may let somebody into a slot that idles beside him: he starves, or the bucket fills."""
        if not self.waiting or self.slots.used >= self.slots.capacity:
            return None
        due = self._starving.next_after(self.clock)
        if self._bucket is not None:
            due = _earlier(due, self._bucket.ready_at(self.clock))
        return due if due is None or due > self.clock else None

    def first_due(self, ticket: Ticket) -> Micros:
        """When the patience of one who has just come to wait is spent."""
        if ticket.state is State.AWAITING:
            return ticket.submitted_at + self.rules.budget
        return ticket.submitted_at + self.rules.lanes[ticket.lane].timeout

    def fire(self, now: Micros) -> list[Decision]:
        """Timeouts, and preemptors whose budget is spent; then whoever may enter for that."""
        done: list[Decision] = []
        for lane in MOST_URGENT_FIRST:
            queue, rules = self.queues[lane], self.rules.lanes[lane]
            while (oldest := queue.oldest()) is not None and oldest.submitted_at + rules.timeout <= now:
                done.append(self._time_out(oldest, now))
            while (preemptor := self._out_of_budget(lane, now)) is not None:
                done.append(self._budget_spent(preemptor, now))
        return done + self.dispatch(now)

    def _out_of_budget(self, lane: int, now: Micros) -> Ticket | None:
        first = self.awaiting.first(lane) if self.awaiting.count else None
        return first if first is not None and first.submitted_at + self.rules.budget <= now else None

    def _time_out(self, ticket: Ticket, now: Micros) -> Decision:
        self._unqueue(ticket, now)
        self._wait_no_more(ticket)
        self.forecasts[ticket.lane].left(now)
        return self._reject(ticket, Reason.QUEUE_TIMEOUT, now)

    def _budget_spent(self, ticket: Ticket, now: Micros) -> Decision:
        self.awaiting.remove(ticket)
        if len(self.queues[ticket.lane]) >= self.rules.lanes[ticket.lane].queue_size:
            self._wait_no_more(ticket)
            return self._reject(ticket, Reason.QUEUE_FULL, now)
        ticket.on(Event.QUEUE)
        self._join(ticket, now)
        return Decision(now, ticket.id, Action.QUEUE, Reason.BUDGET_SPENT)

    # Looking.

    def problems(self) -> Iterable[str]:
        return problems(self)


def _earlier(one: Micros | None, other: Micros) -> Micros:
    return other if one is None or other < one else one
