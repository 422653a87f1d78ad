"""routing-key: whom the running batch knows.

Requests of one routing key use the same adapter or share content, so it pays to run them together. The more running
sequences have a request's key, the sooner it goes; a key that nothing runs with waits behind in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, StepView, WaitQueue
from maitred.queueing.heap import SeqHeap
from maitred.queueing.policy import SCHEDULERS, PolicyInfo, Queue
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


@SCHEDULERS.register("routing-key")
class RoutingKey(QueuePolicy):
    """By how many running sequences have the request's routing key, then the key, then arrival (SGLang `routing-key`). Those
    whose key nothing runs with keep their order of arrival, where SGLang's are sorted by key."""

    about = PolicyInfo(
        line="requests whose routing key most running ones have, then arrival",
        complexity="O(log n) per request, O(running batch) per pass",
        starves="requests whose routing key nothing runs with",
    )

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _ByRoutingKey()


class _ByRoutingKey(Queue):
    def __init__(self) -> None:
        self._all = SeqHeap()
        self._of: dict[str, SeqHeap] = {}
        self._running: list[str] = []
        """The keys that run and may be waited with, best last."""
        self._arrived = 0
        self._returned = 0

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        if front:
            self._returned -= 1
        else:
            self._arrived += 1
        place = (self._returned if front else self._arrived,)
        self._all.push(place, seq)
        if key := seq.request.routing_key:
            self._of.setdefault(key, SeqHeap()).push(place, seq)

    def remove(self, request_id: RequestId) -> Seq | None:
        seq = self._all.remove(request_id)
        if seq is not None and (key := seq.request.routing_key):
            same = self._of[key]
            same.remove(request_id)
            if not same:
                del self._of[key]
        return seq

    def begin(self, step: StepView, now: Micros) -> None:
        counts = step.running_routing_keys()
        shared: Iterable[str] = counts.keys() & self._of.keys()
        self._running = sorted(shared, key=lambda key: (-counts[key], key), reverse=True)

    def peek(self) -> Seq | None:
        running = self._running
        while running and running[-1] not in self._of:
            running.pop()
        return (self._of[running[-1]] if running else self._all).first()

    def pop(self) -> Seq:
        seq = self.peek()
        if seq is None:
            raise IndexError("pop from an empty wait queue")
        self.remove(seq.request.id)
        return seq

    def __len__(self) -> int:
        return len(self._all)
