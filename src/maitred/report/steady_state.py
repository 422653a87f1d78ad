"""Steady state: what a longer run would come to, estimated from one run, with the warm-up left out and intervals.

A run begins with empty instances, so its first requests are served faster than those of a busy hour. And requests that come one
after the other wait alike, so the error of a mean is larger than that of as many independent values.

**Warm-up.** `mser` is MSER-5 (K. P. White, An effective truncation heuristic for bias reduction in simulation output, 1997): of
the means Z of 5 requests each, in the order of arrival, the first d are left out for which this is least:

    MSER(d) = Σ (Z - mean of the rest)² / (number of the rest)²        over the rest

Leaving out one more pays as long as it lowers the variance of the mean that is left. The TTFT and the TPOT are looked at, and
the later of both ends the warm-up. If that is half of the run, nothing steady was reached, and there are no estimates. MSER
alone also leaves out a busy beginning, which is no warm-up: instances that begin empty are fast at first. In a queue at 90 %
of its capacity (M/M/1, 5,000 requests) that made means 7 % too small, against 0.2 % without any rule. So a beginning that took
longer than the rest stays, unless prefixes are cached: caches begin empty, too. A number of seconds leaves out the requests
that arrived within them, and `none` leaves out none.

**The end.** Where a run ends before its requests, those that would have taken longest are cut off, and the others of their time
are faster than all. So requests that arrived less than the longest time of a completed one before the end are left out, too.

**Intervals** are of batch means (B. Schmeiser, Batch size effects in the analysis of simulation output, 1982): the requests
that are left are cut into 10 batches in the order of arrival, and Student's t of their means gives the half width. Long batches
are nearly independent. Those that still follow each other have a standard error that is larger by the factor of a first-order
autoregression, √((1 + r) / (1 - r)). A percentile is where a share of the requests lies below. So its interval goes from the
percentile at which the share is too small by the half width of its batch means to the one at which it is too large: shares have
batch means, too. Where the sample has no such percentile, the interval is open.

Example: the TPOT of batches that fill up, by groups of 5 requests, in ms: 6, 8, 10, 11, 10, 11, 10, ... MSER-5 leaves out the
first 10 requests: with them the variance of the mean is larger, and without the next ones it would be, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, inf, sqrt
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.errors import ConfigError
from maitred.core.student_t import CONFIDENCE, Interval, t_quantile
from maitred.core.units import Micros, from_seconds
from maitred.report.latencies import Times, request_times
from maitred.report.slo import Slo, meets_slo
from maitred.sim import Outcome, Results

Warmup: TypeAlias = str | float
"""How much is left out: `mser`, `none`, or a number of seconds."""
MSER: Final = "mser"
NONE: Final = "none"
LEAST_REQUESTS: Final = 200
"""Fewer requests than these have no batches of any length."""
_GROUP: Final = 5
_DRAINS: Final = 3
"""How many times as long as its arrivals a run goes on after them that has no steady state."""
_BATCHES: Final = 10
_MOST_CORRELATION: Final = 0.9
_LONGEST_SECS: Final = 1e11
PERCENTILES: Final = (50, 99)


class LatencyEstimate(msgspec.Struct, frozen=True):
    """Estimates of a latency, in µs (of the slowdown, a factor); None where the requests do not tell."""

    mean: Interval | None
    p50: Interval | None
    p99: Interval | None


class SteadyState(msgspec.Struct, frozen=True, kw_only=True):
    """The steady state of a run: what was left out, and estimates from the rest."""

    rule: str
    """How the warm-up was found, in words."""
    left_out: int
    """Requests that arrived during the warm-up."""
    warmup: Micros
    """The end of the warm-up."""
    cut: int = 0
    """Requests that arrived so late that the end of the run may have cut off others of their time."""
    requests: int
    """Requests that are left."""
    problem: str = ""
    """Why there are no estimates; empty if there are."""
    latencies: Mapping[str, LatencyEstimate] = {}
    """By name: ttft, tpot, e2e, slowdown."""
    attainment: Interval | None = None
    """Share of the requests within their SLO."""


def warmup_of(given: Warmup, *, where: str = "warmup") -> Warmup:
    """Return the rule that `mser`, `none` or a number of seconds states; a flag has the number as text. Raises ConfigError."""
    if given in (MSER, NONE):
        return given
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_SECS:
        raise ConfigError(f"cannot read {given!r}", where=where, hint="mser, none, or a number of seconds")
    return seconds


def find_steady_state(
    results: Results, slo: Slo, warmup: Warmup = MSER, *, diverges: bool = False, slowdown: Times | None = None
) -> SteadyState | None:
    """Return the steady state of a run, or None if its rows were not kept. `slowdown` is a factor for each row, or NaN."""
    if not len(results):
        return None
    times = request_times(results)
    first, rule = _first_row(results, times.ttft, times.tpot, warmup)
    last = max(first, _end_of_whole(results, times.e2e))
    rest = slice(first, last)
    begins = int(results.arrival[first]) if 0 < first < len(results) else 0
    steady = SteadyState(rule=rule, left_out=first, warmup=begins, cut=len(results) - last, requests=last - first)
    problem = _problem(steady, warmup, len(results), diverges) or _drained(results)
    if problem:
        return msgspec.structs.replace(steady, problem=problem)
    if np.isnan(times.e2e[rest]).all():
        return msgspec.structs.replace(steady, problem="none of the requests has completed")
    columns = {"ttft": times.ttft, "tpot": times.tpot, "e2e": times.e2e}
    columns |= {} if slowdown is None else {"slowdown": slowdown}
    return msgspec.structs.replace(
        steady,
        latencies={name: _estimate(column[rest]) for name, column in columns.items()},
        attainment=share_of_batches(meets_slo(results, slo)[rest]) if slo else None,
    )


def _first_row(results: Results, ttft: Times, tpot: Times, warmup: Warmup) -> tuple[int, str]:
    """Return the first row after the warm-up, and the rule that found it."""
    if not isinstance(warmup, str):
        return int(np.searchsorted(results.arrival, from_seconds(warmup))), "as given"
    if warmup == NONE:
        return 0, "nothing is left out"
    may_be_slow = bool(results.cached_tokens.any())
    counts = (mser5(column[~np.isnan(column)], may_be_slow=may_be_slow) for column in (ttft, tpot))
    return max(_row_of(column, count) for column, count in zip((ttft, tpot), counts, strict=True)), "MSER-5"


def _end_of_whole(results: Results, e2e: Times) -> int:
    """Return the row from which on the end of the run may have cut off requests."""
    completed = e2e[~np.isnan(e2e)]
    if not len(completed) or not (results.outcome == Outcome.UNFINISHED).any():
        return len(results)
    return int(np.searchsorted(results.arrival, results.end - completed.max(), side="right"))


def _row_of(column: Times, count: int) -> int:
    """Return the row after the first `count` values of a column that are there."""
    there = np.flatnonzero(~np.isnan(column))
    return int(there[count]) if 0 < count < len(there) else min(count, len(column))


def _drained(results: Results) -> str:
    """Return that a run was mostly the draining of a queue after the last arrival, or empty: a longer run has no such part."""
    last, ended = int(results.arrival.max()), results.finished[results.outcome == Outcome.COMPLETED]
    after = ended[ended > last]
    is_longer = results.end - last > _DRAINS * (last - int(results.arrival.min()))
    if not is_longer or 2 * len(after) <= len(results):
        return ""
    return f"{len(after) / len(results):.0%} of the requests ended after the last one had come"


def _problem(steady: SteadyState, warmup: Warmup, count: int, diverges: bool) -> str:
    if diverges:
        return "the queue grows without end"
    if count < LEAST_REQUESTS:
        return f"{_requests(count)} too few ({LEAST_REQUESTS} at least)"
    if warmup == MSER and steady.left_out >= count // 2 - _GROUP:
        return "the run has not settled in its first half (a longer one would tell)"
    if steady.requests < LEAST_REQUESTS:
        left = "after the warm-up" if not steady.cut else "between the warm-up and what the end of the run may have cut off"
        return f"{_requests(steady.requests, left)} too few ({LEAST_REQUESTS} at least)"
    return ""


def _requests(count: int, which: str = "") -> str:
    return f"{count:,} {'request' if count == 1 else 'requests'}{which and ' '}{which} {'is' if count == 1 else 'are'}"


def mser5(values: Times, *, may_be_slow: bool = False) -> int:
    """Return how many values of the first half are warm-up, by MSER-5: a multiple of 5, 0 for fewer than 10 values. Unless it
    `may_be_slow`, a warm-up has a smaller mean than the rest."""
    groups = len(values) // _GROUP
    if groups < 2:
        return 0
    means = values[: groups * _GROUP].reshape(groups, _GROUP).mean(axis=1)
    left = np.arange(groups, 0, -1)
    # Sums from the end, about the overall mean, so that no digits are lost.
    centred = means - means.mean()
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum((centred**2)[::-1])[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    if not may_be_slow:
        # The deviations add up to 0: where those of the rest are above it, those of the beginning are below.
        error[1:][sums[1:] <= 0] = np.inf
    # A few means at the end have hardly any variance, by chance or because the last requests are served by emptying instances.
    return int(error[: groups // 2 + 1].argmin()) * _GROUP


def _estimate(column: Times) -> LatencyEstimate:
    values = column[~np.isnan(column)]
    p50, p99 = (percentile_of_batches(values, each) for each in PERCENTILES)
    return LatencyEstimate(mean_of_batches(values), p50, p99)


def mean_of_batches(values: Times) -> Interval | None:
    """Return the mean of a series with its interval, by batch means; None for fewer than `LEAST_REQUESTS` values."""
    half = _half_width(values)
    if half is None:
        return None
    mean = float(values.mean())
    return Interval(mean, mean - half, mean + half)


def share_of_batches(met: NDArray[np.bool_]) -> Interval | None:
    """Return the share of True in a series with its interval within 0..1, or None for fewer than `LEAST_REQUESTS` values.

    Where all are equal, batch means say nothing. Then the other value has a share of less than 1 - 0.05^(1/n), or n of them
    would not all have missed it with a probability of 95 %.
    """
    found = mean_of_batches(met.astype(np.float64))
    if found is None:
        return None
    least = 1 - (1 - CONFIDENCE) ** (1 / len(met)) if found.value in (0.0, 1.0) else 0.0
    return Interval(found.value, max(found.low - least, 0.0), min(found.high + least, 1.0))


def percentile_of_batches(values: Times, percent: float) -> Interval | None:
    """Return a percentile of a series with its interval, or None if there are too few values to bound it."""
    if len(values) < LEAST_REQUESTS:
        return None
    value = float(np.percentile(values, percent))
    half = _half_width((values <= value).astype(np.float64))
    if half is None:
        return None
    # One value is the least by which a share can be wrong.
    half = max(half, 1 / len(values))
    order = np.sort(values)
    last = len(order) - 1
    low, high = floor((percent / 100 - half) * last), ceil((percent / 100 + half) * last)
    return Interval(value, float(order[max(low, 0)]), float(order[high]) if high <= last else inf)


def _half_width(values: Times) -> float | None:
    """Return the half width of the interval of the mean of a series."""
    if len(values) < LEAST_REQUESTS:
        return None
    means = _batch_means(values)
    # The correlation of few values comes out too low by about one part of their number (F. H. C. Marriott, J. A. Pope, 1954).
    correlation = min(max(_correlation(means) + 1 / _BATCHES, 0.0), _MOST_CORRELATION)
    inflation = sqrt((1 + correlation) / (1 - correlation))
    quantile = t_quantile(0.5 + CONFIDENCE / 2, _BATCHES - 1)
    return quantile * float(means.std(ddof=1)) / sqrt(_BATCHES) * inflation


def _batch_means(values: Times) -> Times:
    """Return the means of equal batches. The first values, fewer than there are batches, are in none."""
    size = len(values) // _BATCHES
    means: Times = values[len(values) - size * _BATCHES :].reshape(_BATCHES, size).mean(axis=1)
    return means


def _correlation(means: Times) -> float:
    """Return the correlation of neighbours."""
    centred = means - means.mean()
    squares = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / squares if squares > 0 else 0.0
