"""Statistics of requests: counts and latencies, of all requests at once or part by part.

Percentiles interpolate linearly between the two nearest ranks, as in numpy and BLIS. From a sketch they are within 0.5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.histogram import QuantileSketch
from maitred.core.units import Micros
from maitred.report.latencies import has_gaps, last_tokens, request_times
from maitred.report.slo import Slo, meets_slo
from maitred.sim import Outcome, Results

_PERCENTILES = (50, 90, 95, 99, 99.9)


class LatencyStatistics(msgspec.Struct, frozen=True):
    """Mean, percentiles and standard deviation of a latency, in µs."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    """The percentile 99.9."""
    std: float
    """The standard deviation of these values, as a population."""


def latency_statistics(latencies: NDArray[Any]) -> LatencyStatistics | None:
    """Return the statistics of these latencies (µs), or None if there are none."""
    if not len(latencies):
        return None
    percentiles = np.percentile(latencies, _PERCENTILES).tolist()
    return LatencyStatistics(*(float(latencies.mean()), *percentiles, float(latencies.std())))


def sketch_statistics(sketch: QuantileSketch) -> LatencyStatistics | None:
    """Return the statistics of a sketch, or None if it is empty. The mean is exact, percentiles are within 0.5 %, and the
    standard deviation is that of values each of which is within 0.5 %."""
    if not sketch.count:
        return None
    return LatencyStatistics(*(sketch.mean, *map(sketch.percentile, _PERCENTILES), sketch.std))


class StreamedLatency:
    """The statistics of a latency that comes part by part: percentiles within 0.5 %, mean and standard deviation exact.

    Squares are summed about the mean of each part, and two such sums are merged (T. Chan, G. Golub, R. LeVeque, 1979): plain
    squares of values that are much larger than their spread would cancel out.
    """

    def __init__(self) -> None:
        self._sketch = QuantileSketch()
        self._squares = 0.0
        """The sum of the squared distances of all values from their mean, in µs²."""

    def add(self, latencies: NDArray[Any]) -> None:
        """Add these latencies (µs)."""
        before, count = self._sketch.count, len(latencies)
        if not count:
            return
        shift = float(latencies.mean()) - self._sketch.mean if before else 0.0
        self._squares += float(latencies.var()) * count + shift * shift * before * count / (before + count)
        self._sketch.add_all(latencies)

    def statistics(self) -> LatencyStatistics | None:
        """Return the statistics of all latencies, or None if there are none."""
        found = sketch_statistics(self._sketch)
        return found and msgspec.structs.replace(found, std=(self._squares / self._sketch.count) ** 0.5)


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be counted of some requests."""

    arrived: int
    outcomes: Mapping[Outcome, int]
    """A count for every outcome. They add up to `arrived`."""
    still_running: int
    """Unfinished requests that had been scheduled."""
    prompt_tokens: int
    """Prompt tokens of all requests that were neither rejected nor refused."""
    cached_tokens: int
    """Prompt tokens that were in the prefix cache when the prompt first ran."""
    output_tokens: int
    """Generated tokens, including those of requests that did not complete."""
    served_prompt_tokens: int
    """Prompt tokens of requests that got a token, whether or not they were cached."""
    wasted_tokens: int
    """Tokens for which KV was computed again after a preemption."""
    num_gaps: int
    """Gaps between tokens of completed requests: one less than tokens for each request."""
    gap_time: Micros
    """Sum of these gaps."""
    preemptions: int
    """How often instances freed the KV of these requests."""
    retries: int
    """How often a request began anew: admission took its slot back, or its instance failed."""
    longest_wait: Micros
    """The longest time from an arrival until the request ran for the first time, or ended without having run."""
    within_slo: int | None
    """Requests that met their SLO, or None if there is no SLO."""

    @property
    def completed(self) -> int:
        return self.outcomes[Outcome.COMPLETED]

    @property
    def completed_itl_mean(self) -> float | None:
        """Mean gap between tokens of completed requests, in µs."""
        return self.gap_time / self.num_gaps if self.num_gaps else None

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were cached, 0..1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def total_tokens(self) -> int:
        """Prompt tokens of requests that got a token, and all generated tokens."""
        return self.served_prompt_tokens + self.output_tokens

    @property
    def waste(self) -> float | None:
        """Share of the computed tokens that had been computed before, 0..1."""
        computed = self.prompt_tokens - self.cached_tokens + self.output_tokens + self.wasted_tokens
        return self.wasted_tokens / computed if computed > 0 else None

    @property
    def attainment(self) -> float | None:
        """Share of the arrived requests that met their SLO, 0..1."""
        return None if self.within_slo is None or not self.arrived else self.within_slo / self.arrived


def count_requests(results: Results, slo: Slo) -> RequestCounts:
    """Return the counts of all rows of `results`."""
    outcome = results.outcome
    let_in = (outcome != Outcome.REJECTED) & (outcome != Outcome.REFUSED)
    several = has_gaps(results)
    return RequestCounts(
        arrived=len(results),
        outcomes={kind: int(np.count_nonzero(outcome == kind)) for kind in Outcome},
        still_running=int(np.count_nonzero((outcome == Outcome.UNFINISHED) & (results.scheduled >= 0))),
        prompt_tokens=int(results.prompt_tokens[let_in].sum()),
        cached_tokens=int(results.cached_tokens.sum()),
        output_tokens=int(results.output_tokens.sum()),
        served_prompt_tokens=int(results.prompt_tokens[results.first_token >= 0].sum()),
        wasted_tokens=int(results.wasted_tokens.sum()),
        num_gaps=int((results.output_tokens[several] - 1).sum()),
        gap_time=int((last_tokens(results) - results.first_token)[several].sum()),
        preemptions=int(results.preemptions.sum()),
        retries=int(results.retries.sum()),
        longest_wait=_longest_wait(results),
        within_slo=int(np.count_nonzero(meets_slo(results, slo))) if slo else None,
    )


def add_counts(first: RequestCounts, second: RequestCounts) -> RequestCounts:
    """Return the counts of the requests of both."""
    added = {
        name: getattr(first, name) + getattr(second, name)
        for name in RequestCounts.__struct_fields__
        if name not in ("outcomes", "longest_wait", "within_slo")
    }
    return RequestCounts(
        **added,
        outcomes={kind: first.outcomes[kind] + second.outcomes[kind] for kind in Outcome},
        longest_wait=max(first.longest_wait, second.longest_wait),
        within_slo=None if first.within_slo is None or second.within_slo is None else first.within_slo + second.within_slo,
    )


def request_latencies(results: Results) -> dict[str, NDArray[Any]]:
    """Return the latencies in µs by name (ttft, tpot, e2e, scheduling_delay), each of the requests that have one."""
    times = request_times(results)
    return {name: column[~np.isnan(column)] for name in times.__struct_fields__ for column in (getattr(times, name),)}


def peak_concurrency(results: Results) -> int | None:
    """Return the largest number of requests that were in flight at one instant, from arrival to end; None without rows. A
    request that arrives when another one ends is not counted beside it."""
    if not len(results):
        return None
    ended = np.where(results.finished >= 0, results.finished, max(int(results.end), int(results.arrival.max())) + 1)
    arrivals, ends = np.sort(results.arrival), np.sort(ended)
    # Just after the n-th arrival n have arrived, and those that ended by then have left.
    return int((np.arange(1, len(arrivals) + 1) - np.searchsorted(ends, arrivals, side="right")).max())


def _longest_wait(results: Results) -> Micros:
    """Return the longest wait. `scheduled` is the last entry into a batch, so the first token bounds the first entry from
    above."""
    if not len(results):
        return 0
    ended = np.where(results.finished >= 0, results.finished, results.end)
    ran = np.where(results.scheduled >= 0, results.scheduled, ended)
    ran = np.where(results.first_token >= 0, np.minimum(ran, results.first_token), ran)
    return int((ran - results.arrival).max())
