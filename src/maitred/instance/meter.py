"""Meter: how busy an instance was, and the gaps between the tokens that came out of it.

In a step every decoding sequence emits a token, so the gap before each of them is the duration of the step: a run of k steps
with n decoding sequences has k * n gaps. If all its steps last equally long that is one addition; else their durations
grow with the context from step to step, and where they pass from one bucket of the sketch into the next is found by bisection.
Either way the counts are those of one step after the other.
"""

from __future__ import annotations

from typing import Final

from maitred.contracts import BatchShape, LatencyModel
from maitred.instance.gap_log import GapLog
from maitred.instance.latency.linear_steps import LinearSteps
from maitred.request import RequestId
from maitred.sketch import Sketch, bucket
from maitred.units import Micros

_MOST: Final = 4096
"""So many different gaps are counted exactly before they go into the sketch: an addition is cheaper than a logarithm."""


class Meter:
    """Told of every run, when it is over."""

    __slots__ = ("_even", "_exactly", "_latency", "_log", "_overhead", "_sketch", "busy")

    def __init__(self, latency: LatencyModel, log: GapLog | None = None) -> None:
        """`latency` made the steps; its overhead per output token is part of every gap. `log` is told which gaps came when."""
        self._latency = latency
        self._even = isinstance(latency, LinearSteps)
        """All steps of a run last equally long."""
        self._log = log
        self._overhead = latency.overheads.per_output_token
        self.busy: Micros = 0
        """The time that all steps took."""
        self._sketch = Sketch()
        self._exactly: dict[Micros, int] = {}
        """How often each gap came that is not in the sketch yet."""

    @property
    def gaps(self) -> Sketch:
        """Between one token and the next of the same sequence, as the client sees them (ITL)."""
        self._settle()
        return self._sketch

    def ran(self, shape: BatchShape, steps: int, span: Micros, others: int = 0) -> None:
        """`steps` steps are over, the first of which had this shape; together they took `span`. Of those that decoded in it,
        `others` have no such gap: they had stood still before, or left meanwhile."""
        self.busy += span
        decodes = shape.decodes - others
        if not decodes:
            return
        if steps == 1 or self._even:
            gap = span // steps
        else:
            gap = self._latency.step_time(shape)
            if gap * steps != span:
                self._spread(shape, steps, span, gap)
                return
        if self._log is not None:
            self._log.ran(gap if self._even else bucket(gap + self._overhead), steps, span)
        exactly = self._exactly
        exactly[gap] = exactly.get(gap, 0) + decodes * steps
        if len(exactly) > _MOST:
            self._settle()

    def paused(self, request_id: RequestId, gap: Micros) -> None:
        """Its sequence stood still between two of its tokens, `gap` after each other: its KV was lost, or on its way."""
        if self._log is not None:
            self._log.stood_still(request_id, gap)
        self._exactly[gap] = self._exactly.get(gap, 0) + 1

    def _settle(self) -> None:
        """All gaps are in the sketch."""
        overhead = self._overhead
        self._sketch.add_counted({gap + overhead: times for gap, times in self._exactly.items()})
        self._exactly.clear()

    def _spread(self, shape: BatchShape, steps: int, span: Micros, first: Micros) -> None:
        """Durations that grow."""
        overhead, decodes = self._overhead, shape.decodes
        last = self._time(shape, steps - 1)
        counts: dict[int, int] = {}
        at, now, before = 0, bucket(first + overhead), 0
        final = bucket(last + overhead)
        while at < steps:
            beyond = steps if now == final else self._first_beyond(now, shape, at, steps - 1)
            counts[now] = (beyond - at) * decodes
            if self._log is not None:
                so_far = self._latency.run_time(shape, beyond)
                self._log.ran(now, beyond - at, so_far - before)
                before = so_far
            at = beyond
            if at < steps:
                now = bucket(self._time(shape, at) + overhead)
        self._sketch.add_run(counts, (span + steps * overhead) * decodes, first + overhead, last + overhead)

    def _first_beyond(self, number: int, shape: BatchShape, low: int, high: int) -> int:
        """The first step whose duration is not in this bucket any more: after `low`, and `high` at the latest."""
        while high - low > 1:
            middle = (low + high) // 2
            if bucket(self._time(shape, middle) + self._overhead) <= number:
                low = middle
            else:
                high = middle
        return high

    def _time(self, shape: BatchShape, step: int) -> Micros:
        """Of a step of the run."""
        return self._latency.step_time(BatchShape(shape.decodes, shape.context + step * shape.decodes, spread=shape.spread))
