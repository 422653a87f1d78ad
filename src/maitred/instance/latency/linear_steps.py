"""LinearSteps: the steps of the linear model, of which all in a run take equally long. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from maitred.core.contracts import BatchShape, Overheads
from maitred.core.units import Micros


class DecodeTimes(dict[int, Micros]):
    """The times of steps without prefill by the number of sequences that decode, each computed when it is first asked for."""

    def __init__(self, steps: LinearSteps) -> None:
        super().__init__()
        self._steps = steps

    def __missing__(self, decodes: int) -> Micros:
        time = self[decodes] = self._steps.time_of(0, decodes)
        return time


class LinearSteps:
    """step = b0 + b1 * prefill tokens + b2 * decode tokens, in µs, truncated to a whole µs, at least 1."""

    def __init__(self, b0: float, b1: float, b2: float, overheads: Overheads) -> None:
        self._b0 = b0
        self._b1 = b1
        self._b2 = b2
        self.overheads = overheads
        self.decode_times = DecodeTimes(self)
        """Most steps have no prefill, and a look-up costs less than the formula."""

    def time_of(self, prefill_tokens: int, decodes: int) -> Micros:
        """Return the time of a step with `prefill_tokens`, in which `decodes` sequences decode, µs."""
        return int(self._b0 + self._b1 * prefill_tokens + self._b2 * decodes) or 1

    def step_time(self, batch: BatchShape) -> Micros:
        return self.time_of(batch.prefill_tokens, batch.num_decodes)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return steps * self.step_time(batch)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return min(limit, span // self.step_time(batch))
