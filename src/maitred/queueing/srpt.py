"""srpt: shortest remaining processing time, and the predictors of output lengths that it needs.

What remains of a request is, above all, the output tokens still to come. A server does not know how many they will be. It knows
what the client allows, and how long the answers were that the same program and the same tenant got before. A *length predictor*
makes an estimate from that when the request is added to the queue, and again after a preemption. Where too little is known
there is no estimate: then all requests are alike, and the order is that of arrival.

Example: A is expected to have 90 output tokens and has none yet; B, which was preempted, is expected to have 150 and has 100.
So 90 and 50 are still to come, and B goes first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from random import Random
from typing import Protocol

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, WaitQueue
from maitred.core.registry import Registry
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, KeyQueue, PolicyInfo

_SAMPLE_SIZE = 64
"""Number of lengths of a group, the latest ones, of which a quantile is taken."""
_MIN_SAMPLES = 5
"""With fewer lengths than this, the estimate for a program is that for its tenant, and the one for a tenant is that for all
requests."""
_MAX_GROUPS = 4096
"""Number of programs and tenants that are remembered, those that were used last."""


class LengthEstimator(Protocol):
    """What is known of output lengths in one wait queue."""

    def expected_tokens(self, seq: SequenceState) -> float | None:
        """Return how many output tokens `seq` is expected to have in all, more than it has so far, or None if nothing is
        known."""
        ...

    def observe(self, request: Request, length: int) -> None:
        """Learn that the complete answer to `request` has `length` tokens."""
        ...


class LengthPredictor(Protocol):
    """A way to predict output lengths. Makes the estimator of one wait queue."""

    def estimator(self) -> LengthEstimator:
        """Return a new estimator, which knows nothing yet."""
        ...


LENGTH_PREDICTORS: Registry[LengthPredictor] = Registry(
    "length predictor",
    LengthPredictor,
    group="maitred.length_predictors",
    packages=["maitred.queueing"],
    methods=["estimator"],
    flag="--scheduler 'srpt(PREDICTOR)'",
    headings={"summary": "expects"},
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
    client allows is a ceiling. `q` above 0.5 errs on the long side."""

    def __init__(self, q: float = 0.5) -> None:
        """Raises ValueError unless 0 <= q <= 1."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, not {q}")
        self._q = q

    def estimator(self) -> LengthEstimator:
        return _QuantileEstimator(self._q)


@LENGTH_PREDICTORS.register("hint")
class HintPredictor(LengthPredictor):
    """What the client allows (`max_output_tokens`); without a limit, the median of the latest answers."""

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
        """Return the `q`-quantile of the lengths that are larger than `above`, or twice `above` if none is, or None if too few
        lengths are known."""
        if len(self._sorted) < _MIN_SAMPLES:
            return None
        # A request that has emitted `above` tokens can only be one of the longer ones. If it is longer than all that
        # are known, it is taken to be half done.
        first = bisect_right(self._sorted, above)
        count = len(self._sorted) - first
        return self._sorted[first + min(int(q * count), count - 1)] if count else 2 * above


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
    """Return the groups that `request` belongs to, the closest first."""
    tenant = (request.tenant,)
    return [(*tenant, request.program), tenant] if request.program else [tenant]


@SCHEDULERS.register("srpt")
class ShortestRemainingTime(QueuePolicy):
    """By the expected output tokens still to come, fewest first; then, if those are known, by prompt tokens to compute; then
    arrival, then id. `predictor` is `quantile`, `hint` or `none`. A preempted request has less left than it had at first."""

    about = PolicyInfo(
        summary="fewest expected output tokens still to come first; predictor: quantile, hint or none (which is arrival)",
        complexity="O(log n) per request",
        starves="long answers, and those that are expected to be long",
    )

    def __init__(self, predictor: LengthPredictor | None = None) -> None:
        """`predictor` is `quantile` by default."""
        self._predictor = QuantilePredictor() if predictor is None else predictor

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _SrptQueue(self._predictor.estimator())


class _SrptQueue(KeyQueue):
    def __init__(self, estimator: LengthEstimator) -> None:
        super().__init__(self._remaining)
        self._estimator = estimator

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        self._estimator.observe(seq.request, seq.num_output_tokens)

    def _remaining(self, seq: SequenceState) -> SortKey:
        request, expected = seq.request, self._estimator.expected_tokens(seq)
        if expected is None:
            return (0, 0, request.arrival, request.id)
        # Output first: each of its tokens takes a step, and a whole prompt takes few.
        tokens_left = max(1, expected - seq.num_output_tokens)
        return (tokens_left, seq.num_tokens_to_prefill, request.arrival, request.id)
