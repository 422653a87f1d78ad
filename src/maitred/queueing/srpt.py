"""srpt: shortest remaining processing time.

What remains of a request is, above all, the tokens of its answer that are still to come: each takes a step, and a whole
prompt takes few. How many they are a length predictor says when the request comes in, and again after a preemption. Who knows
nothing expects nothing: then all requests are alike, and the order is that of arrival.
"""

from __future__ import annotations

from random import Random

from maitred.contracts import PrefixView, QueuePolicy, SortKey, WaitQueue
from maitred.queueing.heap import SeqHeap
from maitred.queueing.lengths import LengthPredictor, Lengths, Quantile
from maitred.queueing.policy import SCHEDULERS, PolicyInfo, Queue
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


@SCHEDULERS.register("srpt")
class ShortestRemaining(QueuePolicy):
    """By the expected output tokens still to come, fewest first; then, if those are known, by prompt tokens to compute; then
    arrival, then id. `predictor`: `quantile`, `hint` or `none`. Who is preempted has less left than it had."""

    about = PolicyInfo(
        line="fewest expected output tokens still to come first; predictor: quantile, hint or none (which is arrival)",
        complexity="O(log n) per request",
        starves="long answers, and those that are thought long",
    )

    def __init__(self, predictor: LengthPredictor | None = None) -> None:
        """`predictor`: `quantile` if nobody says."""
        self._predictor = Quantile() if predictor is None else predictor

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _ByRemaining(self._predictor.start())


class _ByRemaining(Queue):
    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._heap = SeqHeap()

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._heap.push(self._key(seq), seq)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._heap.remove(request_id)

    def peek(self) -> Seq | None:
        return self._heap.first()

    def pop(self) -> Seq:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def finished(self, seq: Seq, now: Micros) -> None:
        self._lengths.learn(seq.request, seq.emitted)

    def __len__(self) -> int:
        return len(self._heap)

    def _key(self, seq: Seq) -> SortKey:
        request, expected = seq.request, self._lengths.expected(seq)
        if expected is None:
            return (0, 0, request.arrival, request.id)
        return (max(1, expected - seq.emitted), seq.target, request.arrival, request.id)
