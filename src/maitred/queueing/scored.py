"""Scores of a priority policy beside any order.

A score is kept in `Seq.priority` under every scheduler, also under those that do not order by it: as of when the sequence came,
and anew when it is at the head of the queue, so that one in the running batch has the score with which it was admitted. Of a
policy whose order time may change (see `priorities`) all that wait are computed anew in each pass.
"""

from __future__ import annotations

from random import Random

from maitred.contracts import PrefixView, PriorityPolicy, QueuePolicy, StepView, WaitQueue
from maitred.queueing.priorities import SteadyPriority
from maitred.queueing.wrapping import Around
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class Scored(QueuePolicy):
    """The policy inside, and the scores of `priority`."""

    def __init__(self, inside: QueuePolicy, priority: PriorityPolicy) -> None:
        self.inside = inside
        self._priority = priority

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        inside = self.inside.queue(prefix, rng)
        steady = isinstance(self._priority, SteadyPriority)
        return _HeadScored(inside, self._priority) if steady else _AllScored(inside, self._priority)


class _HeadScored(Around):
    def __init__(self, inside: WaitQueue, priority: PriorityPolicy) -> None:
        super().__init__(inside)
        self._compute = priority.compute
        self._now: Micros = 0

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._now = now
        seq.priority = self._compute(seq.request, now)
        super().add(seq, now, front=front)

    def begin(self, step: StepView, now: Micros) -> None:
        self._now = now
        super().begin(step, now)

    def peek(self) -> Seq | None:
        seq = super().peek()
        if seq is not None:
            seq.priority = self._compute(seq.request, self._now)
        return seq

    def pop(self) -> Seq:
        self.peek()
        return super().pop()


class _AllScored(Around):
    def __init__(self, inside: WaitQueue, priority: PriorityPolicy) -> None:
        super().__init__(inside)
        self._compute = priority.compute
        self._waiting: dict[RequestId, Seq] = {}

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        seq.priority = self._compute(seq.request, now)
        self._waiting[seq.request.id] = seq
        super().add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> Seq | None:
        self._waiting.pop(request_id, None)
        return super().remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        for seq in self._waiting.values():
            seq.priority = self._compute(seq.request, now)
        super().begin(step, now)

    def pop(self) -> Seq:
        seq = super().pop()
        del self._waiting[seq.request.id]
        return seq
