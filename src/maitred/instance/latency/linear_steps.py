"""LinearSteps: the steps of the linear model, of which all in a run take equally long. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from maitred.core.contracts import BatchShape, Overheads
from maitred.core.units import Micros


class LinearSteps:
    """step = b0 + b1 * prefill tokens + b2 * decode tokens, in µs, truncated to a whole µs, at least 1."""

    def __init__(self, b0: float, b1: float, b2: float, overheads: Overheads) -> None:
        self._b0 = b0
        self._b1 = b1
        self._b2 = b2
        self.overheads = overheads

    def time_of(self, prefill_tokens: int, decodes: int) -> Micros:
        """Return the time of a step with `prefill_tokens`, in which `decodes` sequences decode, µs."""
        return int(self._b0 + self._b1 * prefill_tokens + self._b2 * decodes) or 1

    def step_time(self, batch: BatchShape) -> Micros:
        return self.time_of(batch.prefill_tokens, batch.num_decodes)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return steps * self.step_time(batch)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return min(limit, span // self.step_time(batch))
