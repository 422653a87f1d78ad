"""Who has waited longer than the threshold of its class, and may be promoted (see `promotions`).

Looking at every queue at every admission would cost more than all the rest. So it is known since when somebody may starve, and
before that nobody is looked at: who joins can only bring that forward, and when nobody was found it is reckoned anew.

Who waits for the slots of one model, and until when.

A waiter stands in the queue of its lane; or it is a preemptor, who found no queue and awaits its victim's slot, and stands in
none. Within a lane preemptors go first.

Nobody waits for ever: who queues has the timeout of its lane, counted from when it came (also when it is tried again), and a
preemptor the budget of preemption. What becomes of it then, its pool says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from maitred.admission.preemption import PendingPreemptors
from maitred.admission.queues import LaneQueue, SequenceNumbers
from maitred.admission.retry_after import RetryAfterEstimator
from maitred.admission.rules import LANES, LaneRules, PoolRules
from maitred.admission.ticket import Ticket, TicketState
from maitred.core.units import Micros

_NEVER: Final[Micros] = 1 << 62


class StarvationTracker:
    """Those who starve in `queues`, by lane."""

    __slots__ = ("_lanes", "_rules", "earliest_at")

    def __init__(self, queues: Sequence[LaneQueue], rules: Sequence[LaneRules]) -> None:
        self._rules = rules
        self._lanes = [
            (queues[lane], r.starvation_threshold) for lane, r in enumerate(rules) if r.starvation_threshold is not None
        ]
        """Queues from which somebody may be promoted, least urgent first, with the time after which he may."""
        self.earliest_at: Micros = _NEVER
        """Nobody who waits has starved before this instant."""

    def on_enqueued(self, ticket: Ticket) -> None:
        """It stands in the queue of its lane now."""
        threshold = self._rules[ticket.lane].starvation_threshold
        if threshold is not None:
            self.earliest_at = min(self.earliest_at, ticket.submitted_at + threshold + 1)

    def starving_heads(self, now: Micros) -> Iterator[Ticket]:
        """Of each queue the next one, if he starves; least urgent first. To be asked from `since` on."""
        for queue, threshold in self._lanes:
            head = queue.peek()
            if head is not None and now - head.submitted_at > threshold:
                yield head
        oldest = [(queue.oldest(), threshold) for queue, threshold in self._lanes]
        self.earliest_at = min((t.submitted_at + threshold + 1 for t, threshold in oldest if t is not None), default=_NEVER)

    def next_starvation_after(self, now: Micros) -> Micros | None:
        """When the next of those who are next in their queues begins to starve."""
        heads = [(queue.peek(), threshold) for queue, threshold in self._lanes]
        starve = [head.submitted_at + threshold + 1 for head, threshold in heads if head is not None]
        return min((at for at in starve if at > now), default=None)


_AWAITING = TicketState.AWAITING  # members of enums are slow to look up


class PoolQueues:
    """Everybody who waits, by lane. `forecasts` (by lane) are told who joins and who leaves."""

    __slots__ = (
        "_preemption_budget",
        "_retry_estimators",
        "_sizes",
        "_timeouts",
        "lanes",
        "pending_preemptors",
        "queued",
        "starvation",
    )

    def __init__(
        self, rules: PoolRules, sequence_numbers: SequenceNumbers, retry_estimators: Sequence[RetryAfterEstimator]
    ) -> None:
        self.lanes = [LaneQueue(sequence_numbers, rules.tenant_weights) for _ in LANES]
        self.queued = 0
        """How many stand in them."""
        self.pending_preemptors = PendingPreemptors()
        self.starvation = StarvationTracker(self.lanes, rules.lanes)
        self._sizes = [lane.queue_size for lane in rules.lanes]
        self._timeouts = [lane.queue_timeout for lane in rules.lanes]
        self._preemption_budget = rules.preemption_budget
        self._retry_estimators = retry_estimators

    def is_lane_full(self, lane: int) -> bool:
        """Whether no more may queue."""
        return len(self.lanes[lane]) >= self._sizes[lane]

    def head(self, lane: int) -> Ticket | None:
        """Who is next of one lane: a preemptor before those who queue, as he found no queue."""
        if self.pending_preemptors.lanes[lane]:
            first = self.pending_preemptors.first_within_limit(lane)
            if first is not None:
                return first
        return self.lanes[lane].peek()

    # Coming and leaving.

    def enqueue(self, ticket: Ticket, now: Micros) -> None:
        """To the end of its queue."""
        queue = self._start_waiting_in(ticket, now)
        queue.push(ticket)
        self.starvation.on_enqueued(ticket)

    def requeue_front(self, ticket: Ticket, now: Micros) -> None:
        """Before all of its queue: it was a victim, and is to be tried again."""
        queue = self._start_waiting_in(ticket, now)
        queue.push_front(ticket)
        self.starvation.on_enqueued(ticket)

    def adopt(self, ticket: Ticket) -> None:
        """One who has waited under other rules, in the state in which it is; those who queue, in the order they stand in."""
        if ticket.state is _AWAITING:
            self.pending_preemptors.add(ticket)
        else:
            queue = self._start_waiting_in(ticket, ticket.queued_at)
            queue.restore(ticket)
            self.starvation.on_enqueued(ticket)

    def dequeue_admitted(self, ticket: Ticket, now: Micros) -> None:
        """It leaves its queue for a slot: its tenant has had its turn."""
        self.queued -= 1
        self.lanes[ticket.lane].serve(ticket)
        ticket.counters.queue_wait.observe(now - ticket.queued_at)
        self._retry_estimators[ticket.lane].on_admitted(now)

    def dequeue(self, ticket: Ticket, now: Micros) -> None:
        """It leaves its queue for anything else."""
        self.queued -= 1
        self.lanes[ticket.lane].remove(ticket)
        ticket.counters.queue_wait.observe(now - ticket.queued_at)
        self._retry_estimators[ticket.lane].on_left(now)

    def unblock_tenant(self, tenant: str) -> None:
        """The tenant is below its limit again."""
        for queue in self.lanes:
            queue.unblock_tenant(tenant)

    def _start_waiting_in(self, ticket: Ticket, now: Micros) -> LaneQueue:
        queue = self.lanes[ticket.lane]
        if not queue:
            self._retry_estimators[ticket.lane].on_queue_started(now)
        ticket.queued_at = now
        self.queued += 1
        return queue

    # Time.

    def deadline_of(self, ticket: Ticket) -> Micros:
        """When its time is up."""
        if ticket.state is _AWAITING:
            return ticket.submitted_at + self._preemption_budget
        return ticket.submitted_at + self._timeouts[ticket.lane]

    def next_deadline(self) -> Micros | None:
        """When that of the first of them is; None: nobody waits."""
        times: list[Micros] = []
        for queue, timeout in zip(self.lanes, self._timeouts, strict=True):
            if (oldest := queue.oldest()) is not None:
                times.append(oldest.submitted_at + timeout)
        if self.pending_preemptors.count:
            times += [
                first.submitted_at + self._preemption_budget
                for lane in LANES
                if (first := self.pending_preemptors.oldest(lane)) is not None
            ]
        return min(times, default=None)

    def expired_waiter(self, lane: int, now: Micros) -> Ticket | None:
        """One in the queue whose time is up."""
        oldest = self.lanes[lane].oldest()
        return oldest if oldest is not None and oldest.submitted_at + self._timeouts[lane] <= now else None

    def expired_preemptor(self, lane: int, now: Micros) -> Ticket | None:
        """One whose victim has not left in time."""
        first = self.pending_preemptors.oldest(lane)
        return first if first is not None and first.submitted_at + self._preemption_budget <= now else None
