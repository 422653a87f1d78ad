"""Length predictors: how long will this answer be?

A server does not know. It knows what the client allows, and how long the answers were that the same program and tenant got
before. A predictor says what it expects, in tokens, or None where nothing is known.

srpt: shortest remaining processing time.

What remains of a request is, above all, the tokens of its answer that are still to come: each takes a step, and a whole
prompt takes few. How many they are a length predictor says when the request comes in, and again after a preemption. Who knows
nothing expects nothing: then all requests are alike, and the order is that of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from random import Random
from typing import Protocol

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, WaitQueue
from maitred.core.registry import Registry
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, PolicyInfo
from maitred.queueing.heap import SeqHeap

_SAMPLE_SIZE = 64
"""Lengths of which the quantile is taken: the latest."""
_MIN_SAMPLES = 5
"""With fewer of its own, a program is taken for its tenant, and a tenant for all."""
_MAX_GROUPS = 4096


class LengthEstimator(Protocol):
    """What is known of answers in one wait queue."""

    def expected_tokens(self, seq: SequenceState) -> float | None:
        """Tokens that its answer will have in all, more than it has emitted; None: nothing is known."""
        ...

    def observe(self, request: Request, length: int) -> None:
        """The answer to `request` is complete and has `length` tokens."""
        ...


class LengthPredictor(Protocol):
    """Makes the `Lengths` of one wait queue."""

    def estimator(self) -> LengthEstimator: ...


LENGTH_PREDICTORS: Registry[LengthPredictor] = Registry(
    "length predictor",
    LengthPredictor,
    group="maitred.length_predictors",
    packages=["maitred.queueing"],
    methods=["estimator"],
)


@LENGTH_PREDICTORS.register("none")
class NoPrediction(LengthPredictor, LengthEstimator):
    """Nothing is ever known."""

    def estimator(self) -> LengthEstimator:
        return self

    def expected_tokens(self, seq: SequenceState) -> float | None:
        return None

    def observe(self, request: Request, length: int) -> None:
        pass


@LENGTH_PREDICTORS.register("quantile")
class QuantilePredictor(LengthPredictor):
    """The `q`-quantile of the latest answers to the same tenant's same program; else to the tenant; else to all. What the
    client allows is a ceiling. `q` above a half errs on the long side."""

    def __init__(self, q: float = 0.5) -> None:
        """Raises ValueError unless 0 <= q <= 1."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, not {q}")
        self._q = q

    def estimator(self) -> LengthEstimator:
        return _QuantileEstimator(self._q)


@LENGTH_PREDICTORS.register("hint")
class HintPredictor(LengthPredictor):
    """What the client allows (`max_output_tokens`). Who allows anything is expected to be as others were: the median."""

    def estimator(self) -> LengthEstimator:
        return _HintEstimator()


class _RecentLengths:
    """The latest lengths of one group."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        if len(self._latest) == _SAMPLE_SIZE:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(length)
        insort(self._sorted, length)

    def quantile(self, q: float, above: int) -> int | None:
        """Of the lengths that are above `above`; None: too few were ever seen. Where none is above, as much again."""
        if len(self._sorted) < _MIN_SAMPLES:
            return None
        first = bisect_right(self._sorted, above)
        left = len(self._sorted) - first
        return self._sorted[first + min(int(q * left), left - 1)] if left else 2 * above


class _QuantileEstimator(LengthEstimator):
    def __init__(self, q: float) -> None:
        self._q = q
        self._all = _RecentLengths()
        self._groups: OrderedDict[tuple[str, ...], _RecentLengths] = OrderedDict()

    def expected_tokens(self, seq: SequenceState) -> float | None:
        request = seq.request
        for sample in (*map(self._groups.get, _groups_of(request)), self._all):
            length = None if sample is None else sample.quantile(self._q, seq.num_output_tokens)
            if length is not None:
                allowed = request.max_output_tokens
                return length if allowed is None else min(length, allowed)
        return None

    def observe(self, request: Request, length: int) -> None:
        self._all.add(length)
        for group in _groups_of(request):
            self._groups.setdefault(group, _RecentLengths()).add(length)
            self._groups.move_to_end(group)
        while len(self._groups) > _MAX_GROUPS:
            self._groups.popitem(last=False)


class _HintEstimator(LengthEstimator):
    def __init__(self) -> None:
        self._all = _RecentLengths()

    def expected_tokens(self, seq: SequenceState) -> float | None:
        allowed = seq.request.max_output_tokens
        return self._all.quantile(0.5, seq.num_output_tokens) if allowed is None else allowed

    def observe(self, request: Request, length: int) -> None:
        self._all.add(length)


def _groups_of(request: Request) -> list[tuple[str, ...]]:
    """To which it belongs, the closest first."""
    tenant = (request.tenant,)
    return [(*tenant, request.program), tenant] if request.program else [tenant]


@SCHEDULERS.register("srpt")
class ShortestRemainingTime(QueuePolicy):
    """By the expected output tokens still to come, fewest first; then, if those are known, by prompt tokens to compute; then
    arrival, then id. `predictor`: `quantile`, `hint` or `none`. Who is preempted has less left than it had."""

    about = PolicyInfo(
        summary="fewest expected output tokens still to come first; predictor: quantile, hint or none (which is arrival)",
        complexity="O(log n) per request",
        starves="long answers, and those that are thought long",
    )

    def __init__(self, predictor: LengthPredictor | None = None) -> None:
        """`predictor`: `quantile` if nobody says."""
        self._predictor = QuantilePredictor() if predictor is None else predictor

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _SrptQueue(self._predictor.estimator())


class _SrptQueue(BaseQueue):
    def __init__(self, estimator: LengthEstimator) -> None:
        self._estimator = estimator
        self._heap = SeqHeap()

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._heap.push(self._key(seq), seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._heap.remove(request_id)

    def peek(self) -> SequenceState | None:
        return self._heap.first()

    def pop(self) -> SequenceState:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        self._estimator.observe(seq.request, seq.num_output_tokens)

    def __len__(self) -> int:
        return len(self._heap)

    def _key(self, seq: SequenceState) -> SortKey:
        request, expected = seq.request, self._estimator.expected_tokens(seq)
        if expected is None:
            return (0, 0, request.arrival, request.id)
        return (max(1, expected - seq.num_output_tokens), seq.num_tokens_to_prefill, request.arrival, request.id)
