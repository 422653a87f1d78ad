"""Latencies of single requests: the one place where instants of a request become times.

An instant that never came is -1 in a column (`sim.results.NEVER`). A difference with it looks like any other number, so that a
latency of a missing instant would be wrong and nobody would notice. Here it is NaN, which no comparison is true for and which
no statistic takes for a time.

    TTFT               first token - arrival                        of all that got a token
    TPOT               (last token - first token) / (tokens - 1)    of those completed whose tokens did not come at once
    E2E                end - arrival                                of those completed
    scheduling delay   first run - arrival                          of those that ran

The last token is the end of a request, unless clients have measured it (`Results.last_token`): a server may send
more after it.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.sim import Outcome, Results
from maitred.sim.results import Ints

Times = NDArray[np.float64]


class RequestTimes(msgspec.Struct, frozen=True, eq=False):
    """A column for each latency, in µs, with a row for each request; NaN where a request has none."""

    ttft: Times
    tpot: Times
    e2e: Times
    scheduling_delay: Times


def request_times(results: Results) -> RequestTimes:
    """Return the latencies of all rows of `results`."""
    several = has_gaps(results)
    gaps = np.maximum(results.output_tokens - 1, 1)
    return RequestTimes(
        ttft=_since(results.arrival, results.first_token),
        tpot=np.where(several, (last_tokens(results) - results.first_token) / gaps, np.nan),
        e2e=np.where(results.outcome == Outcome.COMPLETED, _since(results.arrival, results.finished), np.nan),
        scheduling_delay=_since(results.arrival, results.scheduled),
    )


def last_tokens(results: Results) -> Ints:
    """Return when the last token of each request came; -1 if it never did."""
    return results.finished if results.last_token is None else results.last_token


def has_gaps(results: Results) -> NDArray[np.bool_]:
    """Return which requests completed with several tokens that did not come at once, as they do if nothing is streamed."""
    completed = (results.outcome == Outcome.COMPLETED) & (results.output_tokens > 1)
    several: NDArray[np.bool_] = completed & (results.first_token >= 0) & (last_tokens(results) > results.first_token)
    return several


def came_at_once(results: Results) -> NDArray[np.bool_]:
    """Return which requests got their tokens, one or several, at one instant, or no token at all that was counted."""
    at_once = (results.first_token >= 0) & (last_tokens(results) == results.first_token)
    found: NDArray[np.bool_] = at_once | (results.output_tokens <= 1)
    return found


def _since(start: Ints, instants: Ints) -> Times:
    """Return the time from `start` to each of `instants`; NaN for those that never came."""
    return np.where(instants >= 0, instants - start, np.nan)
