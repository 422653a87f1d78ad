"""priority-fcfs and reverse-priority: by score, then arrival, then id.

The score is a priority policy's. If time does not change its order the queue is a heap; else each step that may admit
computes every score anew and heapifies.
"""

from __future__ import annotations

from random import Random

from maitred.contracts import PrefixView, PriorityPolicy, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.queueing.heap import SeqHeap
from maitred.queueing.policy import SCHEDULERS, PolicyInfo, Queue
from maitred.queueing.priorities import AgePriority, Constant, SteadyPriority
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class ByScore(QueuePolicy):
    """A policy that orders by scores."""

    name: str
    sign: int
    """What a score is multiplied by to become a key of which the smaller goes first."""

    def __init__(self, priority: PriorityPolicy | None = None) -> None:
        """`priority`: `constant` if nobody says."""
        self.priority = Constant() if priority is None else priority

    def same_as(self) -> str | None:
        """Which simpler policy this is, with what it orders by; None: no such one."""
        if not isinstance(self.priority, AgePriority):
            return None
        oldest_first = self.sign * self.priority.age_weight <= 0
        return f"{self.name} with {self.priority.name} is {'fcfs' if oldest_first else 'last come, first served'}"

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        if isinstance(self.priority, SteadyPriority):
            return _SteadyQueue(self.priority, self.sign)
        return _RescoredQueue(self.priority, self.sign)


@SCHEDULERS.register("priority-fcfs")
class PriorityFcfs(ByScore):
    """The highest score first, then arrival, then id (BLIS `priority-fcfs`). The preempted have no place but by score."""

    about = PolicyInfo(
        line="highest score of the priority policy first, then arrival",
        complexity="O(log n) per request; O(n log n) per pass with a priority policy of one's own",
        starves="low scores, unless scores grow with age",
    )
    name = "priority-fcfs"
    sign = -1


@SCHEDULERS.register("reverse-priority")
class ReversePriority(ByScore):
    """The lowest score first, then arrival, then id (BLIS `reverse-priority`): to see what an inversion does."""

    about = PolicyInfo(
        line="lowest score of the priority policy first, then arrival: an inversion, for experiments",
        complexity="O(log n) per request; O(n log n) per pass with a priority policy of one's own",
        starves="high scores",
    )
    name = "reverse-priority"
    sign = 1


class _SteadyQueue(Queue):
    def __init__(self, priority: SteadyPriority, sign: int) -> None:
        self._priority, self._sign = priority, sign
        self._heap = SeqHeap()
        self._now: Micros = 0

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        request, self._now = seq.request, now
        seq.priority = self._priority.compute(request, now)
        self._heap.push((self._sign * self._priority.rank(request), request.arrival, request.id), seq)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._heap.remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        self._now = now

    def peek(self) -> Seq | None:
        seq = self._heap.first()
        if seq is not None:
            seq.priority = self._priority.compute(seq.request, self._now)
        return seq

    def pop(self) -> Seq:
        self.peek()
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def __len__(self) -> int:
        return len(self._heap)


class _RescoredQueue(Queue):
    """Nothing is known of the scores but what they are at the instant asked for."""

    def __init__(self, priority: PriorityPolicy, sign: int) -> None:
        self._priority, self._sign = priority, sign
        self._heap = SeqHeap()

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        seq.priority = self._priority.compute(seq.request, now)
        self._heap.push(self._key(seq), seq)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._heap.remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        for key, seq in list(self._heap):
            seq.priority = self._priority.compute(seq.request, now)
            if self._key(seq) != key:
                self._heap.push(self._key(seq), seq)

    def peek(self) -> Seq | None:
        return self._heap.first()

    def pop(self) -> Seq:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def stable_until(self, now: Micros) -> Micros | None:
        return now + 1 if len(self._heap) > 1 else None

    def __len__(self) -> int:
        return len(self._heap)

    def _key(self, seq: Seq) -> SortKey:
        return (self._sign * seq.priority, seq.request.arrival, seq.request.id)
