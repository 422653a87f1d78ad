"""by-priority: the client's priority first, and among equals any other policy.

SGLang has this for `fcfs` and `lof` (`--enable-priority-scheduling`). Here each priority has a lane with a queue of the
policy inside, so every policy can stand behind it.
"""

from __future__ import annotations

from bisect import insort
from enum import StrEnum
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, StepView, WaitQueue
from maitred.queueing.fcfs import FirstComeFirstServed
from maitred.queueing.laned import LanedQueue
from maitred.queueing.lanes import Lanes
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class Values(StrEnum):
    """Which of two priorities is more urgent."""

    HIGH_FIRST = "high-first"
    LOW_FIRST = "low-first"


@SCHEDULERS.register("by-priority")
class ByPriority(QueuePolicy):
    """By the priority that the client gave, then as the policy inside orders (SGLang's priority scheduling). Who is preempted
    goes back to the front of its priority, not of the queue."""

    about = PolicyInfo(
        line="the client's priority first (values=high-first or low-first), then the policy inside",
        complexity="as inside, and O(log priorities) per request",
        starves="low priorities",
        cache_aware=CacheAware.AS_INSIDE,
    )

    def __init__(self, policy: QueuePolicy | None = None, values: Values = Values.HIGH_FIRST) -> None:
        """`policy`: fcfs if nobody says."""
        self.inside = FirstComeFirstServed() if policy is None else policy
        self._sign = 1 if values is Values.HIGH_FIRST else -1

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _Levels(Lanes(self.inside, prefix, rng), self._sign)


class _Levels(LanedQueue):
    lanes: Lanes[float]

    def __init__(self, lanes: Lanes[float], sign: int) -> None:
        self.lanes = lanes
        self._sign = sign
        self._levels: list[float] = []
        """Those at which somebody waits, and perhaps some at which nobody does any more; the last goes first."""
        self._known: set[float] = set()
        """The same."""

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        level = self._sign * seq.request.priority
        self.lanes.add(level, seq, now, front=front)
        if level not in self._known:
            self._known.add(level)
            insort(self._levels, level)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self.lanes.remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        self.lanes.begin(step, now)
        self._top()  # begins now: nobody's looking, or not looking, may tell

    def peek(self) -> Seq | None:
        return None if (top := self._top()) is None else top.peek()

    def pop(self) -> Seq:
        if self._top() is None:
            raise IndexError("pop from an empty wait queue")
        return self.lanes.pop(self._levels[-1])

    def stable_until(self, now: Micros) -> Micros | None:
        return None if (top := self._top()) is None else top.stable_until(now)

    def _top(self) -> WaitQueue | None:
        levels = self._levels
        while levels and not self.lanes.waiting(levels[-1]):
            self._known.remove(levels.pop())
        return self.lanes.queue(levels[-1]) if levels else None
