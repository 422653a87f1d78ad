"""A length predictor: the moving average of each tenant's answers.

To try it, in this folder:

    maitred simulate --trace sample:mixed --scheduler "srpt(length_predictor:MovingAverage(weight=0.2))"
"""

from __future__ import annotations

from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.queueing import LengthEstimator, LengthPredictor


class MovingAverage(LengthPredictor):
    """Expects what the tenant's latest answers took: each counts `weight`, and all before it the rest."""

    def __init__(self, weight: float = 0.1) -> None:
        """Raises ValueError for a weight that is not above 0 and at most 1."""
        if not 0 < weight <= 1:
            raise ValueError(f"weight must be above 0 and at most 1, not {weight}")
        self._weight = weight

    def estimator(self) -> LengthEstimator:
        return _Averages(self._weight)


class _Averages(LengthEstimator):
    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._averages: dict[str, float] = {}

    def expected_tokens(self, seq: SequenceState) -> float | None:
        """Return the average; as much again of an answer that is longer already."""
        average = self._averages.get(seq.request.tenant)
        if average is None:
            return None
        expected = average if average > seq.num_output_tokens else 2.0 * seq.num_output_tokens
        allowed = seq.request.max_output_tokens
        return expected if allowed is None else min(expected, allowed)

    def observe(self, request: Request, length: int) -> None:
        before = self._averages.get(request.tenant, float(length))
        self._averages[request.tenant] = before + self._weight * (length - before)
