"""Priority policies: how urgent is a request now?

A score is larger for what is more urgent, and is kept in `SequenceState.priority`. Where time changes all scores alike, their
order is
fixed, and the policy says so by a `rank`: then nobody computes a score but of those that are looked at. The score of a
policy without it, such as a user's own, is computed for all that wait whenever a step may admit.

priority-fcfs and reverse-priority: by score, then arrival, then id.

The score is a priority policy's. If time does not change its order the queue is a heap; else each step that may admit
computes every score anew and heapifies.

by-priority: the client's priority first, and among equals any other policy.

SGLang has this for `fcfs` and `lof` (`--enable-priority-scheduling`). Here each priority has a lane with a queue of the
policy inside, so every policy can stand behind it.

Scores of a priority policy beside any order.

A score is kept in `SequenceState.priority` under every scheduler, also under those that do not order by it: as of when the
sequence came,
and anew when it is at the head of the queue, so that one in the running batch has the score with which it was admitted. Of a
policy whose order time may change (see `priorities`) all that wait are computed anew in each pass.
"""

from __future__ import annotations

from bisect import insort
from enum import StrEnum
from math import isfinite
from random import Random
from typing import Protocol, runtime_checkable

from maitred.core.contracts import PrefixCacheView, PriorityPolicy, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.registry import Registry
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.slo_classes import slo_priority
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, CacheAware, DelegatingQueue, PolicyInfo, SubqueuedQueue
from maitred.queueing.heap import SeqHeap
from maitred.queueing.orders import FirstComeFirstServed
from maitred.queueing.subqueues import Subqueues

PRIORITIES: Registry[PriorityPolicy] = Registry(
    "priority policy",
    PriorityPolicy,
    group="maitred.priority_policies",
    packages=["maitred.queueing"],
    methods=["compute"],
)


@runtime_checkable
class TimeInvariantPriority(PriorityPolicy, Protocol):
    """A priority policy whose order time does not change."""

    def rank(self, request: Request) -> float:
        """Larger wherever `compute` is larger, at every instant; equal where it is equal."""
        ...


class AgeBasedPriority(TimeInvariantPriority):
    """`base_score + age_weight * (now - arrival)`, `age_weight` per microsecond."""

    name: str

    def __init__(self, base_score: float, age_weight: float) -> None:
        """Raises ValueError for what is not finite."""
        self._base = _require_finite("base_score", base_score)
        self.age_weight = _require_finite("age_weight", age_weight)

    def compute(self, request: Request, now: Micros) -> float:
        return self._base + self.age_weight * (now - request.arrival)

    def rank(self, request: Request) -> float:
        """Whole numbers, so that no two arrivals become one."""
        return request.arrival * ((self.age_weight < 0) - (self.age_weight > 0))


@PRIORITIES.register("constant")
class ConstantPriority(AgeBasedPriority):
    """All alike (BLIS `constant`)."""

    name = "constant"

    def __init__(self, base_score: float = 0.0) -> None:
        super().__init__(base_score, 0.0)


@PRIORITIES.register("slo-based")
class SloBasedPriority(AgeBasedPriority):
    """Older is more urgent (BLIS `slo-based`). It looks at no class and no deadline; the scheduler `slo` does."""

    name = "slo-based"

    def __init__(self, base_score: float = 0.0, age_weight: float = 1e-6) -> None:
        super().__init__(base_score, age_weight)


@PRIORITIES.register("inverted-slo")
class InvertedSloPriority(AgeBasedPriority):
    """`base_score - age_weight * (now - arrival)`: newer is more urgent (BLIS `inverted-slo`), to see what harm it does."""

    name = "inverted-slo"

    def __init__(self, base_score: float = 0.0, age_weight: float = 1e-6) -> None:
        super().__init__(base_score, -age_weight)


@PRIORITIES.register("static-slo-class")
class StaticSloClassPriority(TimeInvariantPriority):
    """As urgent as the SLO class of the request, whatever its age (BLIS since May 2026): critical 4, standard 3, batch -1,
    sheddable -2, background -3."""

    name = "static-slo-class"

    def compute(self, request: Request, now: Micros) -> float:
        return slo_priority(request)

    def rank(self, request: Request) -> float:
        return slo_priority(request)


def _require_finite(name: str, value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value}")
    return value


class ScoreOrderedPolicy(QueuePolicy):
    """A policy that orders by scores."""

    name: str
    sign: int
    """What a score is multiplied by to become a key of which the smaller goes first."""

    def __init__(self, priority: PriorityPolicy | None = None) -> None:
        """`priority`: `constant` if nobody says."""
        self.priority = ConstantPriority() if priority is None else priority

    def simpler_equivalent(self) -> str | None:
        """Which simpler policy this is, with what it orders by; None: no such one."""
        if not isinstance(self.priority, AgeBasedPriority):
            return None
        oldest_first = self.sign * self.priority.age_weight <= 0
        return f"{self.name} with {self.priority.name} is {'fcfs' if oldest_first else 'last come, first served'}"

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        if isinstance(self.priority, TimeInvariantPriority):
            return _SteadyQueue(self.priority, self.sign)
        return _RescoredQueue(self.priority, self.sign)


@SCHEDULERS.register("priority-fcfs")
class PriorityFcfs(ScoreOrderedPolicy):
    """The highest score first, then arrival, then id (BLIS `priority-fcfs`). The preempted have no place but by score."""

    about = PolicyInfo(
        summary="highest score of the priority policy first, then arrival",
        complexity="O(log n) per request; O(n log n) per pass with a priority policy of one's own",
        starves="low scores, unless scores grow with age",
    )
    name = "priority-fcfs"
    sign = -1


@SCHEDULERS.register("reverse-priority")
class ReversePriority(ScoreOrderedPolicy):
    """The lowest score first, then arrival, then id (BLIS `reverse-priority`): to see what an inversion does."""

    about = PolicyInfo(
        summary="lowest score of the priority policy first, then arrival: an inversion, for experiments",
        complexity="O(log n) per request; O(n log n) per pass with a priority policy of one's own",
        starves="high scores",
    )
    name = "reverse-priority"
    sign = 1


class _SteadyQueue(BaseQueue):
    def __init__(self, priority: TimeInvariantPriority, sign: int) -> None:
        self._priority, self._sign = priority, sign
        self._heap = SeqHeap()
        self._now: Micros = 0

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        request, self._now = seq.request, now
        seq.priority = self._priority.compute(request, now)
        self._heap.push((self._sign * self._priority.rank(request), request.arrival, request.id), seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._heap.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._now = now

    def peek(self) -> SequenceState | None:
        seq = self._heap.first()
        if seq is not None:
            seq.priority = self._priority.compute(seq.request, self._now)
        return seq

    def pop(self) -> SequenceState:
        self.peek()
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def __len__(self) -> int:
        return len(self._heap)


class _RescoredQueue(BaseQueue):
    """Nothing is known of the scores but what they are at the instant asked for."""

    def __init__(self, priority: PriorityPolicy, sign: int) -> None:
        self._priority, self._sign = priority, sign
        self._heap = SeqHeap()

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        seq.priority = self._priority.compute(seq.request, now)
        self._heap.push(self._key(seq), seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._heap.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        for key, seq in list(self._heap):
            seq.priority = self._priority.compute(seq.request, now)
            if self._key(seq) != key:
                self._heap.push(self._key(seq), seq)

    def peek(self) -> SequenceState | None:
        return self._heap.first()

    def pop(self) -> SequenceState:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def next_order_change(self, now: Micros) -> Micros | None:
        return now + 1 if len(self._heap) > 1 else None

    def __len__(self) -> int:
        return len(self._heap)

    def _key(self, seq: SequenceState) -> SortKey:
        return (self._sign * seq.priority, seq.request.arrival, seq.request.id)


class PriorityValues(StrEnum):
    """Which of two priorities is more urgent."""

    HIGH_FIRST = "high-first"
    LOW_FIRST = "low-first"


@SCHEDULERS.register("by-priority")
class ByPriority(QueuePolicy):
    """By the priority that the client gave, then as the policy inside orders (SGLang's priority scheduling). Who is preempted
    goes back to the front of its priority, not of the queue."""

    about = PolicyInfo(
        summary="the client's priority first (values=high-first or low-first), then the policy inside",
        complexity="as inside, and O(log priorities) per request",
        starves="low priorities",
        cache_aware=CacheAware.AS_INNER,
    )

    def __init__(self, policy: QueuePolicy | None = None, values: PriorityValues = PriorityValues.HIGH_FIRST) -> None:
        """`policy`: fcfs if nobody says."""
        self.inner = FirstComeFirstServed() if policy is None else policy
        self._sign = 1 if values is PriorityValues.HIGH_FIRST else -1

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _PriorityLevels(Subqueues(self.inner, prefix, rng), self._sign)


class _PriorityLevels(SubqueuedQueue):
    subqueues: Subqueues[float]

    def __init__(self, lanes: Subqueues[float], sign: int) -> None:
        self.subqueues = lanes
        self._sign = sign
        self._levels: list[float] = []
        """Those at which somebody waits, and perhaps some at which nobody does any more; the last goes first."""
        self._level_set: set[float] = set()
        """The same."""

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        level = self._sign * seq.request.priority
        self.subqueues.add(level, seq, now, front=front)
        if level not in self._level_set:
            self._level_set.add(level)
            insort(self._levels, level)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self.subqueues.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self.subqueues.start_pass(step, now)
        self._top_queue()  # begins now: nobody's looking, or not looking, may tell

    def peek(self) -> SequenceState | None:
        return None if (top := self._top_queue()) is None else top.peek()

    def pop(self) -> SequenceState:
        if self._top_queue() is None:
            raise IndexError("pop from an empty wait queue")
        return self.subqueues.pop(self._levels[-1])

    def next_order_change(self, now: Micros) -> Micros | None:
        return None if (top := self._top_queue()) is None else top.next_order_change(now)

    def _top_queue(self) -> WaitQueue | None:
        levels = self._levels
        while levels and not self.subqueues.num_waiting(levels[-1]):
            self._level_set.remove(levels.pop())
        return self.subqueues.started_queue(levels[-1]) if levels else None


class ScoredPolicy(QueuePolicy):
    """The policy inside, and the scores of `priority`."""

    def __init__(self, inside: QueuePolicy, priority: PriorityPolicy) -> None:
        self.inner = inside
        self._priority = priority

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        inside = self.inner.make_queue(prefix, rng)
        steady = isinstance(self._priority, TimeInvariantPriority)
        return _HeadScored(inside, self._priority) if steady else _AllScored(inside, self._priority)


class _HeadScored(DelegatingQueue):
    def __init__(self, inner: WaitQueue, priority: PriorityPolicy) -> None:
        super().__init__(inner)
        self._compute = priority.compute
        self._now: Micros = 0

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._now = now
        seq.priority = self._compute(seq.request, now)
        super().add(seq, now, front=front)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._now = now
        super().on_step_start(step, now)

    def peek(self) -> SequenceState | None:
        seq = super().peek()
        if seq is not None:
            seq.priority = self._compute(seq.request, self._now)
        return seq

    def pop(self) -> SequenceState:
        self.peek()
        return super().pop()


class _AllScored(DelegatingQueue):
    def __init__(self, inner: WaitQueue, priority: PriorityPolicy) -> None:
        super().__init__(inner)
        self._compute = priority.compute
        self._waiting: dict[RequestId, SequenceState] = {}

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        seq.priority = self._compute(seq.request, now)
        self._waiting[seq.request.id] = seq
        super().add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        self._waiting.pop(request_id, None)
        return super().remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        for seq in self._waiting.values():
            seq.priority = self._compute(seq.request, now)
        super().on_step_start(step, now)

    def pop(self) -> SequenceState:
        seq = super().pop()
        del self._waiting[seq.request.id]
        return seq
