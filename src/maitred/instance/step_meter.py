"""StepMeter: how busy an instance was, and the gaps between the tokens that came out of it (ITL).

In a step every decoding sequence emits a token, so the gap before each of them is the duration of the step: a run of k steps
with n decoding sequences has k * n gaps. If all its steps take equally long, that is one addition. Otherwise their durations
grow with the context from step to step, and where they pass from one bucket of the sketch into the next is found by bisection.
Either way the counts are those of one step after the other.

Example: 3 sequences decode for 4 steps of 5,000 µs: 12 gaps of 5,000 µs, added at once. If the steps take 5,000, 5,020, 5,040
and 5,060 µs, and a bucket of the sketch ends at 5,030 µs, it gets 6 gaps and the next one gets 6.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from typing import Final

from maitred.core.contracts import BatchShape, LatencyModel
from maitred.core.quantile_sketch import QuantileSketch, bucket_index
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.instance.itl_log import ItlLog
from maitred.instance.latency.linear_steps import LinearSteps

_MAX_EXACT_GAPS: Final = 4096
"""Different gaps that are counted exactly before they go into the sketch: an addition is cheaper than a logarithm."""


class StepMeter:
    """The meter of one instance, which adds every run when it has ended."""

    __slots__ = ("_exact_counts", "_is_constant", "_itl_log", "_latency", "_overhead", "_sketch", "busy_time")

    def __init__(self, latency: LatencyModel, itl_log: ItlLog | None = None) -> None:
        """`latency` is the model of the instance; its overhead per output token is part of every gap. `itl_log` receives the
        gaps, too, in the order of time."""
        self._latency = latency
        self._is_constant = isinstance(latency, LinearSteps)
        """Whether all steps of a run take equally long."""
        self._itl_log = itl_log
        self._overhead = latency.overheads.per_output_token
        self.busy_time: Micros = 0
        """µs that all steps took."""
        self._sketch = QuantileSketch()
        self._exact_counts: dict[Micros, int] = {}
        """Counts of the gaps (µs, without overhead) that are not in the sketch yet."""

    @property
    def itl_sketch(self) -> QuantileSketch:
        """Gaps between one token and the next of the same sequence, as the client sees them, in µs."""
        self._flush_counts()
        return self._sketch

    def add_run(self, shape: BatchShape, steps: int, time: Micros, not_emitting: int = 0) -> None:
        """Add `steps` steps that have ended and took `time` together; the first of them had this shape. `not_emitting` of its
        decoding sequences have no such gap: they had stood still before, or have left meanwhile."""
        self.busy_time += time
        decodes = shape.num_decodes - not_emitting
        if not decodes:
            return
        # More context never makes a step shorter. So if the first step times the number of steps is the whole time, all are
        # equal.
        if steps == 1 or self._is_constant:
            gap = time // steps
        else:
            gap = self._latency.step_time(shape)
            if gap * steps != time:
                self._add_growing(shape, steps, time, gap)
                return
        if self._itl_log is not None:
            self._itl_log.add_steps(gap if self._is_constant else bucket_index(gap + self._overhead), steps, time)
        counts = self._exact_counts
        counts[gap] = counts.get(gap, 0) + decodes * steps
        if len(counts) > _MAX_EXACT_GAPS:
            self._flush_counts()

    def add_pause(self, request_id: RequestId, gap: Micros) -> None:
        """Add a pause of one sequence between two tokens, `gap` µs after each other: its KV was lost, or being transferred."""
        if self._itl_log is not None:
            self._itl_log.add_pause(request_id, gap)
        self._exact_counts[gap] = self._exact_counts.get(gap, 0) + 1

    def _flush_counts(self) -> None:
        """Put the gaps that are counted exactly into the sketch."""
        overhead = self._overhead
        self._sketch.add_counts({gap + overhead: times for gap, times in self._exact_counts.items()})
        self._exact_counts.clear()

    def _add_growing(self, shape: BatchShape, steps: int, span: Micros, first: Micros) -> None:
        """Add a run whose steps take longer and longer, the first one `first` µs, and together `span`."""
        overhead, decodes = self._overhead, shape.num_decodes
        last = self._step_time(shape, steps - 1)
        counts: dict[int, int] = {}
        step, bucket, time_before = 0, bucket_index(first + overhead), 0
        last_bucket = bucket_index(last + overhead)
        # A bucket is 1 % wide, and contexts grow by one token per step: runs of thousands of steps pass through few buckets.
        while step < steps:
            beyond = steps if bucket == last_bucket else self._first_step_beyond(bucket, shape, step, steps - 1)
            counts[bucket] = (beyond - step) * decodes
            if self._itl_log is not None:
                time = self._latency.run_time(shape, beyond)
                self._itl_log.add_steps(bucket, beyond - step, time - time_before)
                time_before = time
            step = beyond
            if step < steps:
                bucket = bucket_index(self._step_time(shape, step) + overhead)
        self._sketch.add_buckets(counts, (span + steps * overhead) * decodes, first + overhead, last + overhead)

    def _first_step_beyond(self, bucket: int, shape: BatchShape, low: int, high: int) -> int:
        """Return the first step whose duration is beyond `bucket`: after `low`, and `high` at the latest."""
        while high - low > 1:
            middle = (low + high) // 2
            if bucket_index(self._step_time(shape, middle) + self._overhead) <= bucket:
                low = middle
            else:
                high = middle
        return high

    def _step_time(self, shape: BatchShape, step: int) -> Micros:
        """Return the duration of a step of the run whose first step has this shape."""
        return self._latency.step_time(
            BatchShape(shape.num_decodes, shape.context_tokens + step * shape.num_decodes, context_spread=shape.context_spread)
        )
