"""A latency model: a step takes as long as its arithmetic or its memory traffic, in four numbers.

To try it, in this folder:

    maitred simulate --trace sample:mixed --latency-model "latency_model:TwoLimits(weights=4000)"
"""

from __future__ import annotations

from maitred.core.contracts import BatchShape
from maitred.instance.latency import StepTimes


class TwoLimits(StepTimes):
    """The larger of two times, in µs: to compute the tokens of a step, and to read the weights and the KV that they look at."""

    def __init__(self, token: float = 18.0, weights: float = 5000.0, kv: float = 0.04, launch: float = 200.0) -> None:
        """Per token computed; per step; per token of KV read; and per step on top of the larger one, all in µs."""
        if min(token, weights, kv, launch) < 0:
            raise ValueError("token, weights, kv and launch must be at least 0 µs")
        self._token, self._weights, self._kv, self._launch = token, weights, kv, launch

    def micros(self, batch: BatchShape) -> float:
        read = batch.context_tokens + sum(chunk.num_computed_tokens for chunk in batch.chunks)
        compute = self._token * (batch.prefill_tokens + batch.num_decodes)
        return self._launch + max(compute, self._weights + self._kv * read)
