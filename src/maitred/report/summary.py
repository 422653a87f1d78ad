"""The figures of a run, overall and per class.

    TTFT  first token - arrival, of every request that got a first token, whatever became of it (as BLIS counts)
    TPOT  (finished - first token) / (output tokens - 1), of completed requests with at least 2 output tokens
    E2E   finished - arrival, of completed requests

Percentiles interpolate linearly between the two nearest ranks, as numpy and BLIS do. What has no requests to be computed
from is None, never NaN and never 0.

A request is good if it completed within every target of the SLO that was given; a single token has no gap, so it meets any
TPOT target. Goodput is good requests per simulated second; attainment is good requests over all that arrived, so that
turning requests away does not look like serving them well.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from maitred.request import PriorityClass
from maitred.sim import Outcome, Results
from maitred.units import MILLISECOND, SECOND, Micros, to_seconds

Mask = npt.NDArray[np.bool_]


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Latency targets; None: not one."""

    ttft: Micros | None = None
    tpot: Micros | None = None
    e2e: Micros | None = None

    def __bool__(self) -> bool:
        return self != Slo()


USUAL_SLO = Slo(ttft=2 * SECOND, tpot=200 * MILLISECOND)
"""For those who state none: what MLPerf Inference asks of its "server" scenario with Llama 2 70B."""


class Spread(msgspec.Struct, frozen=True):
    """How a latency is distributed, in µs."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the requests of one class, or of all."""

    arrived: int
    outcomes: dict[Outcome, int]
    """A count for every outcome; they add up to `arrived`."""
    prompt_tokens: int
    """Of the requests that were let in: neither rejected nor refused."""
    cached_tokens: int
    """Of their prompts, what was in the prefix cache when they first ran."""
    output_tokens: int
    """All that came out, also of requests that did not complete."""
    preemptions: int
    """How often their instances took the KV of one of them."""
    retries: int
    """How often admission took the slot of one of them back and let it wait for another."""
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    scheduling_delay: Spread | None
    good: int | None
    """Requests within the SLO; None when there is none."""

    @property
    def completed(self) -> int:
        return self.outcomes[Outcome.COMPLETED]

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were cached, 0..1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def attainment(self) -> float | None:
        """0..1."""
        return None if self.good is None or not self.arrived else self.good / self.arrived


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    duration: Micros
    """Simulated, from 0 to the end of the run."""
    slo: Slo
    total: Group
    classes: dict[PriorityClass, Group]
    """Only classes of which a request arrived, the most urgent first."""

    def per_second(self, count: int | None) -> float | None:
        """`count` per simulated second; None if there is no count or no time passed."""
        return None if count is None or not self.duration else count / to_seconds(self.duration)


def summarise(results: Results, slo: Slo | None = None) -> Summary:
    targets = slo or Slo()
    present = [cls for cls in sorted(PriorityClass, reverse=True) if np.any(results.priority_class == cls)]
    return Summary(
        duration=int(results.end),
        slo=targets,
        total=_group(results, targets, np.ones(len(results.arrival), dtype=np.bool_)),
        classes={cls: _group(results, targets, results.priority_class == cls) for cls in present},
    )


def _group(results: Results, slo: Slo, members: Mask) -> Group:
    outcome, preemptions = results.outcome[members], results.preemptions[members]
    arrival, first, finished = results.arrival[members], results.first_token[members], results.finished[members]
    scheduled = results.scheduled[members]
    prompts, tokens = results.prompt_tokens[members], results.output_tokens[members]
    let_in = (outcome != Outcome.REJECTED) & (outcome != Outcome.REFUSED)
    completed, several = outcome == Outcome.COMPLETED, tokens > 1
    ttft, e2e = first - arrival, finished - arrival
    tpot = (finished - first) / np.maximum(tokens - 1, 1)
    good = completed & _within(ttft, slo.ttft) & (_within(tpot, slo.tpot) | ~several) & _within(e2e, slo.e2e)
    return Group(
        arrived=len(arrival),
        outcomes={kind: int(np.count_nonzero(outcome == kind)) for kind in Outcome},
        prompt_tokens=int(prompts[let_in].sum()),
        cached_tokens=int(results.cached_tokens[members].sum()),
        output_tokens=int(tokens.sum()),
        preemptions=int(preemptions.sum()),
        retries=int(results.retries[members].sum()),
        ttft=_spread(ttft[first >= 0]),
        tpot=_spread(tpot[completed & several]),
        e2e=_spread(e2e[completed]),
        scheduling_delay=_spread((scheduled - arrival)[scheduled >= 0]),
        good=int(np.count_nonzero(good)) if slo else None,
    )


def _within(latency: npt.NDArray[np.int64] | npt.NDArray[np.float64], target: Micros | None) -> Mask:
    return np.ones(len(latency), dtype=np.bool_) if target is None else latency <= target


def _spread(latencies: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Spread | None:
    if not len(latencies):
        return None
    p50, p90, p95, p99 = np.percentile(latencies, (50, 90, 95, 99))
    return Spread(float(latencies.mean()), float(p50), float(p90), float(p95), float(p99))
