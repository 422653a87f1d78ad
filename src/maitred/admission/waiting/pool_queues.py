"""The requests that wait for the slots of one model, until when, and which of them starve.

A waiting request is in the queue of its lane (`queues`); or it is a preemptor that waits for its victim's slot, and is
in no queue. Within a lane preemptors go first.

A request in a queue waits for at most the timeout of its lane, counted from its submission, also when it is tried
again. A preemptor waits for its victim for at most the preemption budget. What happens then is decided by the pool.

A request starves once it has waited longer than the starvation threshold of its class; then it may be promoted
(`priority`). Examining every queue at every admission would cost more than everything else. So `earliest_at` says
before which instant no request starves, and until then no queue is examined. A request that joins can only bring that
instant forward; when the queues have been examined and none was promoted, it is computed anew (`update_earliest`).

Example: with a threshold of 30 s, requests submitted at 0 s and at 10 s wait. Until 30 s an admission compares two
numbers and examines nothing. After 30 s the first request is found and promoted. The next examination finds none that
starves, and sets `earliest_at` to 40 s. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from maitred.admission.terms.rules import LANES, LaneRules, PoolRules
from maitred.admission.terms.ticket import Ticket, TicketState
from maitred.admission.waiting.preemption import PendingPreemptors
from maitred.admission.waiting.queues import LaneQueue, SequenceNumbers
from maitred.admission.waiting.retry_after import RetryAfterEstimator
from maitred.core.units import Micros

_AWAITING = TicketState.AWAITING  # members of enums are slow to look up
_NEVER: Final[Micros] = 1 << 62


class StarvationTracker:
    """Finds the requests in `queues` (by lane) that starve."""

    __slots__ = ("_lanes", "_rules", "earliest_at")

    def __init__(self, queues: Sequence[LaneQueue], rules: Sequence[LaneRules]) -> None:
        self._rules = rules
        self._lanes = [
            (queues[lane], r.starvation_threshold) for lane, r in enumerate(rules) if r.starvation_threshold is not None
        ]
        """The queues from which requests may be promoted, least urgent first, with their thresholds (µs)."""
        self.earliest_at: Micros = _NEVER
        """No waiting request starves before this instant."""

    def on_enqueued(self, ticket: Ticket) -> None:
        """Note that a request has joined the queue of its lane."""
        threshold = self._rules[ticket.lane].starvation_threshold
        if threshold is not None:
            # One µs more than the threshold, because a request starves only when it has waited longer than that.
            self.earliest_at = min(self.earliest_at, ticket.submitted_at + threshold + 1)

    def starving_heads(self, now: Micros) -> Iterator[Ticket]:
        """Yield the head of each queue if it starves, least urgent first. There is none before `earliest_at`."""
        for queue, threshold in self._lanes:
            head = queue.peek()
            if head is not None and now - head.submitted_at > threshold:
                yield head

    def update_earliest(self) -> None:
        """Compute `earliest_at` anew, after the queues have been examined."""
        # By the oldest request of each queue, which is not always its head: the instant must not move past a request that
        # starves behind a head that does not.
        oldest = [(queue.oldest(), threshold) for queue, threshold in self._lanes]
        self.earliest_at = min((t.submitted_at + threshold + 1 for t, threshold in oldest if t is not None), default=_NEVER)

    def next_starvation_after(self, now: Micros) -> Micros | None:
        """Return when the next head of a queue begins to starve, or None if all heads starve already."""
        heads = [(queue.peek(), threshold) for queue, threshold in self._lanes]
        starve = [head.submitted_at + threshold + 1 for head, threshold in heads if head is not None]
        return min((at for at in starve if at > now), default=None)


class PoolQueues:
    """All waiting requests of one pool, by lane. The estimators (by lane) are told which requests join and leave."""

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
        """Requests in the queues, without preemptors."""
        self.pending_preemptors = PendingPreemptors()
        self.starvation = StarvationTracker(self.lanes, rules.lanes)
        self._sizes = [lane.queue_size for lane in rules.lanes]
        self._timeouts = [lane.queue_timeout for lane in rules.lanes]
        self._preemption_budget = rules.preemption_budget
        self._retry_estimators = retry_estimators

    def inherit_from(self, former: PoolQueues) -> None:
        """Take over how much each tenant has been served (`LaneQueue.inherit_from`)."""
        for queue, previous in zip(self.lanes, former.lanes, strict=True):
            queue.inherit_from(previous)

    def is_lane_full(self, lane: int) -> bool:
        """Return whether no further request may queue, but for one that has queued before."""
        return len(self.lanes[lane]) >= self._sizes[lane]

    def head(self, lane: int) -> Ticket | None:
        """Return the next request of `lane`, or None. Preemptors go first: each was the next one when it preempted."""
        if self.pending_preemptors.lanes[lane]:
            first = self.pending_preemptors.first_within_limit(lane)
            if first is not None:
                return first
        queue = self.lanes[lane]
        return queue.peek() if queue.entries else None

    def enqueue(self, ticket: Ticket, now: Micros) -> None:
        """Add a request at the end of the queue of its lane."""
        queue = self._queue_for(ticket, now)
        queue.push(ticket)
        self.starvation.on_enqueued(ticket)

    def requeue_front(self, ticket: Ticket, now: Micros) -> None:
        """Add a victim that is tried again, or a preemptor that got no slot, at the front of the queue of its lane."""
        queue = self._queue_for(ticket, now)
        queue.push_front(ticket)
        self.starvation.on_enqueued(ticket)

    def adopt(self, ticket: Ticket) -> None:
        """Add a request that has waited in another pool, in its state. To be called in the order of sequence numbers."""
        if ticket.state is _AWAITING:
            self.pending_preemptors.add(ticket)
        else:
            queue = self._queue_for(ticket, ticket.queued_at)
            queue.restore(ticket)
            self.starvation.on_enqueued(ticket)

    def dequeue_admitted(self, ticket: Ticket, now: Micros) -> None:
        """Remove a request that gets a slot, or waits for that of a victim from now on."""
        self.queued -= 1
        self.lanes[ticket.lane].serve(ticket)
        ticket.counters.queue_wait.observe(now - ticket.queued_at)
        self._retry_estimators[ticket.lane].on_admitted(now)

    def dequeue(self, ticket: Ticket, now: Micros) -> None:
        """Remove a request that leaves its queue without a slot."""
        self.queued -= 1
        self.lanes[ticket.lane].remove(ticket)
        ticket.counters.queue_wait.observe(now - ticket.queued_at)
        self._retry_estimators[ticket.lane].on_left(now)

    def _queue_for(self, ticket: Ticket, now: Micros) -> LaneQueue:
        """Note that a request begins to queue at `now`, and return its queue."""
        queue = self.lanes[ticket.lane]
        if not queue:
            self._retry_estimators[ticket.lane].on_queue_started(now)
        ticket.queued_at = now
        self.queued += 1
        return queue

    def deadline_of(self, ticket: Ticket) -> Micros:
        """Return until when a request may wait as it does now."""
        if ticket.state is _AWAITING:
            return ticket.queued_at + self._preemption_budget
        return ticket.submitted_at + self._timeouts[ticket.lane]

    def next_deadline(self) -> Micros | None:
        """Return the earliest deadline of a waiting request, or None if none waits."""
        times: list[Micros] = []
        for queue, timeout in zip(self.lanes, self._timeouts, strict=True):
            if (oldest := queue.oldest()) is not None:
                times.append(oldest.submitted_at + timeout)
        if self.pending_preemptors.count:
            times += [
                first.queued_at + self._preemption_budget
                for lane in LANES
                if (first := self.pending_preemptors.oldest(lane)) is not None
            ]
        return min(times, default=None)

    def expired_waiter(self, lane: int, now: Micros) -> Ticket | None:
        """Return a request in the queue of `lane` that is past its timeout, or None."""
        oldest = self.lanes[lane].oldest()
        return oldest if oldest is not None and oldest.submitted_at + self._timeouts[lane] <= now else None

    def expired_preemptors(self, lane: int, now: Micros) -> Sequence[Ticket]:
        """Return the preemptors of `lane` that have waited in vain for their victims to leave, oldest first."""
        pending = self.pending_preemptors.lanes[lane].values()
        return list(takewhile(lambda ticket: ticket.queued_at + self._preemption_budget <= now, pending))

    def find_violations(self) -> Iterator[str]:
        """Yield a line for each count that does not match what waits, and each request that waits in the wrong place. O(n)."""
        preemptors = self.pending_preemptors
        if self.queued != sum(map(len, self.lanes)):
            yield f"{self.queued} counted in queues, but these differ"
        if preemptors.count != sum(map(len, preemptors.lanes)):
            yield f"{preemptors.count} counted as awaiting a victim, but lanes differ"
        for lane in LANES:
            for ticket in self.lanes[lane]:
                if ticket.state is not TicketState.QUEUED or ticket.lane != lane:
                    yield f"{ticket} in the queue of lane {lane} does not queue there"
            for ticket in preemptors.lanes[lane].values():
                if ticket.state is not _AWAITING:
                    yield f"{ticket} awaits no victim"
