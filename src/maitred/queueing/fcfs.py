"""fcfs: first come, first served."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, WaitQueue
from maitred.queueing.policy import SCHEDULERS, PolicyInfo, Queue
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


@SCHEDULERS.register("fcfs")
class FirstComeFirstServed(QueuePolicy):
    """In order of arrival; a preempted sequence goes back to the front. Nothing starves; a long prompt blocks the rest."""

    about = PolicyInfo(
        line="in order of arrival; a preempted request goes back to the front",
        complexity="O(1) per request",
        starves="nobody; a long prompt blocks those behind it",
    )

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _Line()


class _Line(Queue):
    def __init__(self) -> None:
        self._line: OrderedDict[RequestId, Seq] = OrderedDict()

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._line[seq.request.id] = seq
        if front:
            self._line.move_to_end(seq.request.id, last=False)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._line.pop(request_id, None)

    def peek(self) -> Seq | None:
        return next(iter(self._line.values()), None)

    def pop(self) -> Seq:
        if not self._line:
            raise IndexError("pop from an empty wait queue")
        return self._line.popitem(last=False)[1]

    def __len__(self) -> int:
        return len(self._line)
