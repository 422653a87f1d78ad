"""StepMeter and ItlLog: how busy an instance was, and the gaps between the tokens that came out of it (ITL).

The meter counts gaps by their size, over all sequences. In a step every decoding sequence emits a token, so the gap before each
of them is the duration of the step: a run of k steps with n decoding sequences has k * n gaps. If all its steps take equally
long, that is one addition. Otherwise their durations grow with the context from step to step, and where they pass from one
bucket of the sketch into the next is found by bisection. Either way the counts are those of one step after the other.

Example: 3 sequences decode for 4 steps of 5,000 µs: 12 gaps of 5,000 µs, added at once. If the steps take 5,000, 5,020, 5,040
and 5,060 µs, and a bucket of the sketch ends at 5,030 µs, it gets 6 gaps and the next one gets 6.

To tell later which sequence had which gaps, the log knows two things: *stretches* of steps with about equal gaps (one bucket of
the sketch), in which no sequence began or stopped to decode, and for each sequence through which stretches it decoded. It had
one gap for every step of these. Gaps over a preemption or a transfer are noted singly. That is two numbers for a stretch and
three for a sequence, however long answers are, and nothing per step. How steps were divided into runs does not show: steps that
go on in the same way belong to the same stretch.

Example: request 1 decodes through 10 steps of 100 µs, and request 2 joins for the last 4 of them, which take 110 µs each:

    stretch_steps        6    4           request_ids        1    2
    stretch_times      600  440           first_stretches    0    1
                                          end_stretches      2    2

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Final

from maitred.core.contracts import LatencyModel
from maitred.core.errors import ConfigError
from maitred.core.histogram import QuantileSketch, bucket_end, bucket_index, bucket_indices
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.instance.latency.floor_sums import SHIFT
from maitred.instance.latency.linear_steps import LinearSteps
from maitred.instance.step_run import StepRun

_NO_BUCKET: Final = -2
"""No bucket: the next steps begin a stretch of their own."""


class ItlLog:
    """The log of one instance. The meter adds every run, and the instance says which sequences decode."""

    __slots__ = (
        "_last_bucket",
        "_open_intervals",
        "end_stretches",
        "first_stretches",
        "request_ids",
        "single_gap_request_ids",
        "single_gaps",
        "stretch_steps",
        "stretch_times",
    )

    def __init__(self) -> None:
        self.stretch_steps, self.stretch_times = array("q"), array("q")
        """By stretch: its steps, and the time that they took together (µs)."""
        self.request_ids, self.first_stretches, self.end_stretches = array("q"), array("q"), array("q")
        """By interval of decoding: the request, its first stretch, and the stretch before which it ended."""
        self.single_gap_request_ids, self.single_gaps = array("q"), array("q")
        """By single gap: the request, and the time between its two tokens (µs)."""
        self._open_intervals: dict[RequestId, int] = {}
        """Index of the interval of each request that decodes now."""
        self._last_bucket = _NO_BUCKET

    def add_steps(self, itl_bucket: int, steps: int, time: Micros) -> None:
        """Add steps that have ended, with gaps in one bucket of the sketch, to the present stretch or as a new one."""
        if itl_bucket == self._last_bucket:
            self.stretch_steps[-1] += steps
            self.stretch_times[-1] += time
        else:
            self._last_bucket = itl_bucket
            self.stretch_steps.append(steps)
            self.stretch_times.append(time)

    def on_decode_starts(self, request_ids: Iterable[RequestId]) -> None:
        """Begin the intervals of several requests, as `on_decode_start` says."""
        for request_id in request_ids:
            self.on_decode_start(request_id)

    def on_decode_start(self, request_id: RequestId) -> None:
        """Begin an interval: a request decodes from the next step on. Raises ConfigError for an id of more than 64 bits."""
        self._last_bucket = _NO_BUCKET
        self._open_intervals[request_id] = len(self.end_stretches)
        try:
            self.request_ids.append(request_id)
        except OverflowError as error:
            raise ConfigError(f"request {request_id}: its id is too large", hint="ids have 64 bits at most") from error
        stretch = len(self.stretch_steps)
        self.first_stretches.append(stretch)
        self.end_stretches.append(stretch)

    def on_decode_end(self, request_id: RequestId) -> None:
        """End the interval of a request, which does not decode from the next step on."""
        self._last_bucket = _NO_BUCKET
        self.end_stretches[self._open_intervals.pop(request_id)] = len(self.stretch_steps)

    def add_single_gap(self, request_id: RequestId, gap: Micros) -> None:
        """Add a gap of one request, `gap` µs between two tokens, that is no step of a stretch."""
        self.single_gap_request_ids.append(request_id)
        self.single_gaps.append(gap)

    def close(self) -> None:
        """End the intervals of the requests that still decode: the simulation has ended."""
        for index in self._open_intervals.values():
            self.end_stretches[index] = len(self.stretch_steps)
        self._open_intervals.clear()


_bucket_of = lru_cache(maxsize=1 << 16)(bucket_index)
"""A look-up is cheaper than a logarithm, and the same durations come again and again."""
_LONGEST: Final = 1 << 62
"""No gap is longer (µs)."""
_TABLE_SIZE: Final = 1 << 16
"""Gaps (µs) below which the bucket is looked up in a table."""
_MOST_DECODES: Final = 1025
"""Sequences in a batch below which the steps that only decode are counted by their number."""


@cache
def _bucket_table() -> list[int]:
    """Return the bucket of each gap below `_TABLE_SIZE` µs."""
    import numpy as np

    buckets: list[int] = bucket_indices(np.arange(_TABLE_SIZE)).tolist()
    # One number for each bucket, and not one for each gap: the table stays in the cache of the processor.
    numbers = {bucket: bucket for bucket in buckets}
    return [numbers[bucket] for bucket in buckets]


class StepMeter:
    """The meter of one instance, which adds every run when it has ended."""

    __slots__ = (
        "_buckets",
        "_busy_time",
        "_counts",
        "_itl_log",
        "_largest",
        "_linear",
        "_overhead",
        "_sketch",
        "_smallest",
        "_total",
        "decode_steps",
    )

    def __init__(self, latency: LatencyModel, itl_log: ItlLog | None = None) -> None:
        """`latency` is the model of the instance; its overhead per output token is part of every gap. `itl_log` receives the
        gaps, too, in the order of time."""
        self._linear = latency if isinstance(latency, LinearSteps) else None
        """The model, if it is the one with which all steps of a run take equally long."""
        self._itl_log = itl_log
        self._overhead = latency.overheads.per_output_token
        self._busy_time: Micros = 0
        self.decode_steps: list[int] = [] if self._linear is None else [0] * _MOST_DECODES
        """Steps without prefill, by the number of sequences that decode, which the driver counts here instead of adding their
        run: with the linear model their time follows from that."""
        self._sketch = QuantileSketch()
        self._buckets = _bucket_table()
        self._counts: dict[int, int] = {}
        """Counts of the gaps, by bucket, that are not in the sketch yet."""
        self._total: Micros = 0
        """The sum of these gaps, with overhead; the smallest and the largest of them are beside it."""
        self._smallest: Micros = _LONGEST
        self._largest: Micros = 0

    @property
    def busy_time(self) -> Micros:
        """µs that all steps took."""
        self._add_decode_steps()
        return self._busy_time

    @property
    def itl_sketch(self) -> QuantileSketch:
        """Gaps between one token and the next of the same sequence, as the client sees them, in µs."""
        self._add_decode_steps()
        self._flush_counts()
        return self._sketch

    def _add_decode_steps(self) -> None:
        """Add what is in `decode_steps`."""
        for decodes, steps in enumerate(self.decode_steps):
            if steps and self._linear is not None:
                self.decode_steps[decodes] = 0
                self.add_equal_steps(decodes, steps, self._linear.decode_times[decodes])

    def add_run(self, run: StepRun, steps: int, time: Micros, not_emitting: int = 0) -> None:
        """Add the first `steps` steps of `run`, which have ended and took `time` together. `not_emitting` of its decoding
        sequences have no such gap: they had stood still before, or have left meanwhile."""
        decodes = run.num_decodes - not_emitting
        if steps == 1 or not decodes:
            self.add_equal_steps(decodes, 1, time)
            return
        if run.growth >= 0 and self._itl_log is None:
            self.add_line(run.first, run.growth, steps, decodes, time)
            return
        if run.plan.chunks and not run.step_time:
            for step in range(steps):
                self.add_equal_steps(decodes, 1, run.time_of_step(step))
            return
        # More context never makes a step shorter. So if the first step times the number of steps is the whole time, all are
        # equal.
        gap = run.time_of_step(0)
        if gap * steps == time:
            self.add_equal_steps(decodes, steps, gap)
        else:
            self._add_growing(run, steps, time, gap)

    def add_equal_steps(self, decodes: int, steps: int, gap: Micros) -> None:
        """Add `steps` steps that have ended and took `gap` each. After each of them `decodes` sequences had a token more."""
        self._busy_time += gap * steps
        if not decodes:
            return
        if self._itl_log is not None:
            self._itl_log.add_steps(bucket_index(gap + self._overhead) if self._linear is None else gap, steps, gap * steps)
        self.add_single_gaps(gap, decodes * steps)

    def add_single_gap(self, request_id: RequestId, gap: Micros) -> None:
        """Add a gap of one sequence, `gap` µs between two tokens: its KV was lost, or being transferred."""
        if self._itl_log is not None:
            self._itl_log.add_single_gap(request_id, gap)
        self.add_single_gaps(gap, 1)

    def add_single_gaps(self, gap: Micros, count: int) -> None:
        """Add `count` gaps of `gap` µs each. The log learns nothing of them."""
        gap += self._overhead
        bucket, counts = self._buckets[gap] if gap < _TABLE_SIZE else _bucket_of(gap), self._counts
        counts[bucket] = counts.get(bucket, 0) + count
        self._total += gap * count
        self._smallest = gap if gap < self._smallest else self._smallest
        self._largest = gap if gap > self._largest else self._largest

    def _flush_counts(self) -> None:
        """Put the gaps that are not in the sketch yet into it."""
        if self._counts:
            self._sketch.add_buckets(self._counts, self._total, self._smallest, self._largest)
            self._counts.clear()
            self._total, self._smallest, self._largest = 0, _LONGEST, 0

    def add_line(self, first: int, growth: int, steps: int, decodes: int, span: Micros) -> None:
        """Add a run of `steps` steps on a line, which took `span` together. `first` and `growth` are those of the run. There is
        no log of gaps."""
        overhead, counts = self._overhead, self._counts
        shortest, longest = (first >> SHIFT) + overhead, ((first + growth * (steps - 1)) >> SHIFT) + overhead
        self._busy_time += span
        self._total += (span + steps * overhead) * decodes
        self._smallest = shortest if shortest < self._smallest else self._smallest
        self._largest = longest if longest > self._largest else self._largest
        if longest < _TABLE_SIZE:
            bucket, last_bucket = self._buckets[shortest], self._buckets[longest]
        else:
            bucket, last_bucket = _bucket_of(shortest), _bucket_of(longest)
        if bucket == last_bucket:
            counts[bucket] = counts.get(bucket, 0) + steps * decodes
            return
        step = 0
        while bucket < last_bucket:
            beyond = -((first - ((bucket_end(bucket) - overhead) << SHIFT)) // growth)
            if beyond > step:
                counts[bucket] = counts.get(bucket, 0) + (beyond - step) * decodes
                step = beyond
            bucket += 1
        counts[bucket] = counts.get(bucket, 0) + (steps - step) * decodes

    def _add_growing(self, run: StepRun, steps: int, span: Micros, first: Micros) -> None:
        """Add a run of steps that take longer and longer, the first one `first` µs, and together `span`."""
        self._busy_time += span
        overhead, decodes, counts = self._overhead, run.num_decodes, self._counts
        self._total += (span + steps * overhead) * decodes
        first += overhead
        last = run.time_of_step(steps - 1) + overhead
        self._smallest = min(self._smallest, first)
        self._largest = max(self._largest, last)
        step, bucket, time_before = 0, _bucket_of(first), 0
        last_bucket = _bucket_of(last)
        # A bucket is 1 % wide, and contexts grow by one token per step: runs of thousands of steps pass through few buckets.
        while step < steps:
            beyond = steps if bucket == last_bucket else self._first_step_beyond(bucket, run, step, steps - 1)
            counts[bucket] = counts.get(bucket, 0) + (beyond - step) * decodes
            if self._itl_log is not None:
                time = run.time_of(beyond)
                self._itl_log.add_steps(bucket, beyond - step, time - time_before)
                time_before = time
            step = beyond
            if step < steps:
                bucket = _bucket_of(run.time_of_step(step) + overhead)

    def _first_step_beyond(self, bucket: int, run: StepRun, low: int, high: int) -> int:
        """Return the first step with a duration beyond `bucket`: after `low`, and `high` at the latest."""
        while high - low > 1:
            middle = (low + high) // 2
            if _bucket_of(run.time_of_step(middle) + self._overhead) <= bucket:
                low = middle
            else:
                high = middle
        return high
