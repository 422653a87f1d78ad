"""What a request waits outside the engine's steps, fitted to what clients have seen.

Steps are measured inside the engine. Clients see more of each request: HTTP, tokenising and queues in front (α), and between
the steps what the engine does without measuring it (scheduling, sending tokens out). The requests of a timeline that clients
saw are simulated with the step times that are known. Then

    c0, c1       (measured - simulated) decode time per step  =  c0 + c1 · sequences, robustly over requests: a server that
                 sends the tokens of all sequences works longer for more of them. `sequences` is how many were between their
                 first and last token meanwhile, on average; where that hardly differs, c1 is 0 and c0 the median
    α0, α1       TTFT measured - simulated  =  α0 + α1 · prompt tokens, robustly (where the prompts hardly differ, α1 is 0 and
                 α0 the median), of the requests that waited for two steps at most in the simulated queue, or the half that
                 waited least: where requests wait long, a small error of the steps is a large one of the wait. (Not fewer:
                 for which part of a step a request waits is chance, so those that waited least in the simulation waited
                 longer in the measurement, and α would be half a step too high)

A longer step changes the queue, and so the rest, hence this is repeated. c0 and c1 go into the latency model (β0 and β2, the
`sequences` of a table), because they hold the engine up. α does not.

Example: steps of 10 ms, requests of 100 tokens; clients see a first token after 14 ms and the others every 11 ms. One ms per
step is missing, and 3 ms are α0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.instance import InstanceConfig
from maitred.instance.latency import LatencyConfig, LinearLatency, TableLatency, TrainedPhysicsLatency
from maitred.sim import Outcome, simulate
from maitred.study.calibration.measurements import MeasuredRequest, timeline_jobs
from maitred.study.calibration.regression import Floats, robust_line

_ROUNDS: Final = 4
_MIN_REQUESTS: Final = 10
_LEAST_SPREAD: Final = 1.5
"""c1 is fitted if the 90th percentile of the sequences is at least this many times the 10th, and α1 if that of the prompts is:
of equal ones nothing can be told about others."""
_BETA7: Final = 6
"""Index of the constant of a step among the coefficients of trained-physics."""


class OutsideTimes(msgspec.Struct, frozen=True):
    """Times in µs."""

    per_step: float
    """Time between steps that was not measured as part of one (c0)."""
    per_sequence: float
    """Time between steps that was not measured, for each sequence that decodes (c1)."""
    alpha: float
    """What every request waits outside the engine."""
    alpha_per_token: float
    """What it waits for each token of its prompt."""


def fit_outside(
    latency: LatencyConfig, timelines: Sequence[Sequence[MeasuredRequest]], engine: InstanceConfig
) -> tuple[LatencyConfig, OutsideTimes]:
    """Return `latency` with what clients saw beyond it, and that by itself. `engine` served the timelines.

    Raises ConfigError for too few requests, and for requests that `engine` cannot serve.
    """
    if sum(map(len, timelines)) < _MIN_REQUESTS:
        raise ConfigError(f"{sum(map(len, timelines))} requests are too few", hint=f"give at least {_MIN_REQUESTS}")
    sequences = np.concatenate([_sequences(rows) for rows in timelines])
    per_step = per_sequence = 0.0
    for _ in range(_ROUNDS):
        longer = replace(engine, latency=_with_step(latency, per_step, per_sequence))
        simulated = [_Simulated.of(rows, longer) for rows in timelines]
        missing_steps = np.concatenate([each.missing_per_step() for each in simulated])
        per_step, per_sequence = _per_step(latency, sequences, missing_steps + per_step + per_sequence * sequences)
    waits, prompts, missing = (
        np.concatenate(columns) for columns in zip(*(each.first_tokens() for each in simulated), strict=True)
    )
    step_times = np.concatenate([each.step_times() for each in simulated])
    step = np.median(step_times) if len(step_times) else 0.0
    few = waits <= max(np.median(waits), 2 * step)
    alpha, per_token = _line_or_constant(prompts[few], missing[few])
    found = OutsideTimes(per_step, per_sequence, alpha, per_token)
    return _with_alpha(_with_step(latency, per_step, per_sequence), found, float(np.median(prompts))), found


def _sequences(rows: Sequence[MeasuredRequest]) -> Floats:
    """Return for each request with several tokens how many requests were between their first and last token meanwhile, on
    average."""
    first, last = (np.array([getattr(row, name) for row in rows]) for name in ("first_token", "last_token"))
    at = np.sort(np.concatenate([first, last]))
    running = np.searchsorted(np.sort(first), at, side="right") - np.searchsorted(np.sort(last), at, side="right")
    so_far = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(at))])
    several = np.array([row.output_tokens > 1 for row in rows]) & (last > first)
    found: Floats = (np.interp(last, at, so_far) - np.interp(first, at, so_far))[several] / (last - first)[several]
    return found


def _per_step(latency: LatencyConfig, sequences: Floats, missing: Floats) -> tuple[float, float]:
    """Return c0 and c1 for these times per step."""
    if not len(missing):
        return 0.0, 0.0
    if isinstance(latency, TrainedPhysicsLatency):  # which has no coefficient for c1
        return max(0.0, float(np.median(missing))), 0.0
    return _line_or_constant(sequences, missing)


def _line_or_constant(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the constant and the slope of a robust line, neither of them negative; the slope is 0 where `x` hardly differs."""
    low, high = np.percentile(x, (10, 90))
    if high < _LEAST_SPREAD * low:
        return max(0.0, float(np.median(y))), 0.0
    return robust_line(x, y)


def latencies_of(
    latency: LatencyConfig, timelines: Sequence[Sequence[MeasuredRequest]], engine: InstanceConfig
) -> tuple[list[float], list[float]]:
    """Return the E2E of all requests as clients saw it, and as it is simulated, in µs."""
    simulated = [_Simulated.of(rows, replace(engine, latency=latency)) for rows in timelines]
    measured = [SECOND * row.latency for rows in timelines for row in rows]
    return measured, [float(us) for each in simulated for us in each.ttft + each.decode]


class _Simulated(msgspec.Struct, frozen=True, eq=False):
    """The requests of one timeline, measured and simulated. Times are in µs."""

    rows: Sequence[MeasuredRequest]
    ttft: Floats
    decode: Floats
    waited: Floats

    @classmethod
    def of(cls, rows: Sequence[MeasuredRequest], engine: InstanceConfig) -> _Simulated:
        results = simulate(timeline_jobs(rows), instance=engine)
        if (results.outcome != Outcome.COMPLETED).any():
            hint = "is this the engine that served them? max_model_len and total_kv_blocks limit a request"
            raise ConfigError("some measured requests cannot be served by the engine that is configured", hint=hint)
        order = np.argsort(results.request_id)
        first, arrival = results.first_token[order], results.arrival[order]
        decode, waited = results.finished[order] - first, results.scheduled[order] - arrival
        return cls(rows, (first - arrival).astype(float), decode.astype(float), waited.astype(float))

    def step_times(self) -> Floats:
        """Return the mean simulated time of a step, by request of several tokens."""
        steps = np.array([row.output_tokens - 1 for row in self.rows])
        times: Floats = self.decode[steps > 0] / steps[steps > 0]
        return times

    def missing_per_step(self) -> Floats:
        """Return how much longer than simulated a step took, by request."""
        steps = np.array([row.output_tokens - 1 for row in self.rows])
        decode = SECOND * np.array([row.last_token - row.first_token for row in self.rows])
        several = (steps > 0) & (decode > 0)
        missing: Floats = (decode - self.decode)[several] / steps[several]
        return missing

    def first_tokens(self) -> tuple[Floats, Floats, Floats]:
        """Return the simulated waits, the prompt tokens, and how much later than simulated the first tokens came."""
        prompts = np.array([float(row.prompt_tokens) for row in self.rows])
        ttft = SECOND * np.array([row.first_token - row.sent for row in self.rows])
        return self.waited, prompts, ttft - self.ttft


def _with_step(latency: LatencyConfig, us: float, per_sequence: float) -> LatencyConfig:
    """Return `latency` without α, in which each step takes `us` longer, and `per_sequence` for each sequence."""
    if isinstance(latency, LinearLatency):
        b0, b1, b2 = latency.beta
        return LinearLatency((b0 + us, b1, b2 + per_sequence))
    if isinstance(latency, TableLatency) and latency.table is not None:
        curve = latency.table.sequences
        if len(curve) == 1:
            curve = (curve[0], (curve[0][0] + 1, curve[0][1]))  # The last two points also serve what is beyond them.
        longer = tuple((x, time + us + per_sequence * x) for x, time in curve)
        return TableLatency(table=replace(latency.table, sequences=longer))
    assert isinstance(latency, TrainedPhysicsLatency)
    beta = (*latency.beta[:_BETA7], latency.beta[_BETA7] + us, *latency.beta[_BETA7 + 1 :])
    return replace(latency, alpha=(0.0, 0.0, 0.0), beta=beta)


def _with_alpha(latency: LatencyConfig, found: OutsideTimes, typical_prompt: float) -> LatencyConfig:
    if isinstance(latency, TrainedPhysicsLatency):  # which knows no time per token on the way in
        return replace(latency, alpha=(float(f"{found.alpha + found.alpha_per_token * typical_prompt:.6g}"), 0.0, 0.0))
    alpha = (float(f"{found.alpha:.6g}"), float(f"{found.alpha_per_token:.6g}"), 0.0)
    return replace(latency, alpha=alpha)
