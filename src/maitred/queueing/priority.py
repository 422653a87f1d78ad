"""Priorities: how urgent is a request, and the orders that go by that.

Here an instance orders its wait queue. Which request gets a slot, by class, is another thing: `admission/classes/priority.py`.

Two things are called a priority, and both are kept in `SequenceState.priority`, larger being more urgent:

    the client's          a number that comes with the request (`Request.priority`): the order `by-priority`
    a score               what a priority policy computes (`PRIORITIES`), or its rank by score: the orders `priority-fcfs`
                          and `reverse-priority`

It is kept under every scheduler, also under those that do not order by it (`ScoredPolicy`), because it may also say which
running sequence is preempted.

Where time changes all scores alike, the order is fixed. Then the policy has a `rank` (`TimeInvariantPriority`), which is kept
instead of the score. The scores of a policy without it, such as a user's own, are computed for all waiting sequences at the
start of each step that may admit, and a running sequence keeps the one with which it was admitted.
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
from maitred.queueing.base import (
    SCHEDULERS,
    BaseQueue,
    CacheAware,
    DelegatingQueue,
    KeyQueue,
    PolicyInfo,
    RequestFacts,
    SubqueuedQueue,
)
from maitred.queueing.orders import FirstComeFirstServed
from maitred.queueing.subqueues import Subqueues

PRIORITIES: Registry[PriorityPolicy] = Registry(
    "priority policy",
    PriorityPolicy,
    group="maitred.priority_policies",
    packages=["maitred.queueing"],
    methods=["compute"],
    flag="--priority-policy",
    headings={"summary": "score"},
)


@runtime_checkable
class TimeInvariantPriority(PriorityPolicy, Protocol):
    """A priority policy with an order that time does not change."""

    def rank(self, request: Request) -> float:
        """Return a number that orders requests at every instant as `compute` does."""
        ...


class AgeBasedPriority(TimeInvariantPriority):
    """`base_score + age_weight * (now - arrival)`, with `age_weight` per microsecond."""

    name: str

    def __init__(self, base_score: float, age_weight: float) -> None:
        """Raises ValueError for what is not finite."""
        self._base = _require_finite("base_score", base_score)
        self.age_weight = _require_finite("age_weight", age_weight)

    def compute(self, request: Request, now: Micros) -> float:
        return self._base + self.age_weight * (now - request.arrival)

    def rank(self, request: Request) -> float:
        """Return the arrival with the sign of the order: whole numbers, so that no two arrivals become one."""
        return request.arrival * ((self.age_weight < 0) - (self.age_weight > 0))


@PRIORITIES.register("constant")
class ConstantPriority(AgeBasedPriority):
    """The same score for all requests (BLIS `constant`)."""

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
    """The priority of the request's SLO class, whatever its age (BLIS since May 2026): critical 4, standard 3, batch
    -1, sheddable -2, background -3."""

    name = "static-slo-class"

    def compute(self, request: Request, now: Micros) -> float:
        return slo_priority(request)

    def rank(self, request: Request) -> float:
        return slo_priority(request)


def _require_finite(name: str, value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value}")
    return value


class ScoredPolicy(QueuePolicy):
    """The order of the inner policy, while the ranks or scores of `priority` are kept in `SequenceState.priority`."""

    def __init__(self, inner: QueuePolicy, priority: PriorityPolicy) -> None:
        self.inner = inner
        self._priority = priority

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return scored_queue(self.inner.make_queue(prefix, rng), self._priority)


def scored_queue(inner: WaitQueue, priority: PriorityPolicy) -> WaitQueue:
    """Return `inner` with the ranks of `priority`, or its scores if it has no ranks."""
    return _RankedQueue(inner, priority) if isinstance(priority, TimeInvariantPriority) else _ScoredQueue(inner, priority)


class _PrioritizedQueue(DelegatingQueue, BaseQueue):
    """A wait queue that keeps ranks or scores beside the order of the inner one."""

    def head_key(self) -> SortKey | None:
        return self._inner.head_key() if isinstance(self._inner, BaseQueue) else None


class _RankedQueue(_PrioritizedQueue):
    def __init__(self, inner: WaitQueue, priority: TimeInvariantPriority) -> None:
        super().__init__(inner)
        self._rank = priority.rank

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        # The numbers of sequences that were admitted at different instants must be comparable. Scores that grow with age are
        # not: a sequence that was preempted and admitted again would have a higher one than an older one that has run on, and
        # both would preempt each other for ever.
        seq.priority = self._rank(seq.request)
        self._inner.add(seq, now, front=front)


class _ScoredQueue(_PrioritizedQueue):
    def __init__(self, inner: WaitQueue, priority: PriorityPolicy) -> None:
        super().__init__(inner)
        self._compute = priority.compute
        self._waiting: dict[RequestId, SequenceState] = {}

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        seq.priority = self._compute(seq.request, now)
        self._waiting[seq.request.id] = seq
        self._inner.add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        self._waiting.pop(request_id, None)
        return self._inner.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        for seq in self._waiting.values():
            seq.priority = self._compute(seq.request, now)
        self._inner.on_step_start(step, now)

    def pop(self) -> SequenceState:
        seq = self._inner.pop()
        del self._waiting[seq.request.id]
        return seq


class ScoreOrderedPolicy(QueuePolicy):
    """A policy that orders by scores, then arrival, then id. Its queue is that of a key with scores beside it: of the `rank`,
    where there is one, or else of the score itself, which is another at each step."""

    name: str
    sign: int
    """What a score is multiplied by to become a key of which the smaller goes first."""

    def __init__(self, priority: PriorityPolicy | None = None) -> None:
        """`priority` is `constant` by default."""
        self.priority = ConstantPriority() if priority is None else priority

    def simpler_equivalent(self) -> str | None:
        """Return which simpler policy this is with its priority policy, as a sentence, or None if there is none."""
        if not isinstance(self.priority, AgeBasedPriority):
            return None
        oldest_first = self.sign * self.priority.age_weight <= 0
        return f"{self.name} with {self.priority.name} is {'fcfs' if oldest_first else 'last come, first served'}"

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        priority = self.priority
        if isinstance(priority, TimeInvariantPriority):
            rank = priority.rank
            return scored_queue(KeyQueue(lambda seq: self._key(seq, rank(seq.request))), priority)
        return scored_queue(_RekeyedQueue(lambda seq: self._key(seq, seq.priority)), priority)

    def _key(self, seq: SequenceState, score: float) -> SortKey:
        return (self.sign * score, seq.request.arrival, seq.request.id)


class _RekeyedQueue(KeyQueue):
    """A queue that gives its sequences new keys at each step."""

    def on_step_start(self, step: StepView, now: Micros) -> None:
        # Only changed keys are pushed again: scores that seldom change, such as classes, cost a comparison each.
        for before, seq in list(self._heap):
            key = self._key(seq)
            if key != before:
                self._heap.push(seq.request.id, key, seq)

    def next_order_change(self, now: Micros) -> Micros | None:
        return now + 1 if len(self._heap) > 1 else None


@SCHEDULERS.register("priority-fcfs")
class PriorityFcfs(ScoreOrderedPolicy):
    """The highest score first, then arrival, then id (BLIS `priority-fcfs`). Preempted sequences are ordered like all
    others."""

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


class PriorityValues(StrEnum):
    """Which of two priorities is more urgent."""

    HIGH_FIRST = "high-first"
    LOW_FIRST = "low-first"


@SCHEDULERS.register("by-priority")
class ByPriority(QueuePolicy):
    """By the priority that the client gave, then as the inner policy orders (SGLang's priority scheduling, which has it for
    `fcfs` and `lof` alone). A preempted request goes back to the front of its priority, not of the queue."""

    about = PolicyInfo(
        summary="the client's priority first (values=high-first or low-first), then the inner policy",
        complexity="as the inner policy, and O(log priorities) per request",
        starves="low priorities",
        cache_aware=CacheAware.AS_INNER,
        reads=RequestFacts.CLIENT_PRIORITY,
    )

    def __init__(self, policy: QueuePolicy | None = None, values: PriorityValues = PriorityValues.HIGH_FIRST) -> None:
        """`policy` is fcfs by default."""
        self.inner = FirstComeFirstServed() if policy is None else policy
        self._sign = 1 if values is PriorityValues.HIGH_FIRST else -1

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _PriorityLevels(Subqueues(self.inner, prefix, rng), self._sign)


class _PriorityLevels(SubqueuedQueue):
    """A subqueue of the inner policy for each priority."""

    subqueues: Subqueues[float]

    def __init__(self, subqueues: Subqueues[float], sign: int) -> None:
        self.subqueues = subqueues
        self._sign = sign
        self._levels: list[float] = []
        """The levels at which requests wait, and perhaps some at which none does any more, in order. The last goes first."""
        self._level_set: set[float] = set()
        """The levels of `_levels` as a set."""

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
        self._top_queue()  # starts the step there now, so that it makes no difference whether the head is looked at later

    def peek(self) -> SequenceState | None:
        return None if (top := self._top_queue()) is None else top.peek()

    def pop(self) -> SequenceState:
        if self._top_queue() is None:
            raise IndexError("pop from an empty wait queue")
        return self.subqueues.pop(self._levels[-1])

    def next_order_change(self, now: Micros) -> Micros | None:
        return None if (top := self._top_queue()) is None else top.next_order_change(now)

    def _top_queue(self) -> WaitQueue | None:
        """Return the queue of the most urgent level at which requests wait, or None if none waits."""
        levels = self._levels
        while levels and not self.subqueues.num_waiting(levels[-1]):
            self._level_set.remove(levels.pop())
        return self.subqueues.started_queue(levels[-1]) if levels else None
