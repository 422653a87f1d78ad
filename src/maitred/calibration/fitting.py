"""Coefficients of latency models from measurements: least squares of relative errors, no coefficient below 0.

A step of 10 ms and one of 300 ms count alike, because what is asked of a model is that it be right within so many percent.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from maitred.calibration.least_squares import Floats, non_negative
from maitred.calibration.measured_steps import MeasuredStep
from maitred.calibration.residuals import Residuals, residuals
from maitred.calibration.timelines import Measured
from maitred.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.latency import Deployment, LatencyConfig, LinearLatency, TrainedPhysicsLatency
from maitred.units import SECOND

_FEWEST = 3
_PRECISE = 1e6
"""Models answer in whole µs; scaled so, the contribution of one coefficient is known to 1e-6 µs."""
_FITTED = (0, 1, 2, 3, 5, 8, 9)
"""β1 β2 β3 β4 β6 β1b β2b of trained-physics. β5, β7 and β8 are constants of a step, as β3 is for one model on one kind of GPU:
no measurement on it can tell them apart."""


class Fit(msgspec.Struct, frozen=True):
    """A latency model, and how well it fits what it was made from."""

    latency: LatencyConfig
    residuals: Residuals
    engine: InstanceConfig = InstanceConfig()
    """What else of an instance it holds for: the model and the GPUs of its coefficients, or the engine that was measured."""


def judged(latency: LatencyConfig, steps: Sequence[MeasuredStep]) -> Fit:
    """`latency`, and what it makes of `steps`."""
    model = latency.compiled()
    return Fit(latency, residuals([step.us for step in steps], [model.step_time(step.shape) for step in steps]))


def fit_linear(steps: Sequence[MeasuredStep]) -> Fit:
    """β0 + β1 · prefill tokens + β2 · decode tokens. Raises ConfigError for fewer than three steps."""
    _check(steps)
    features = np.array([[1.0, step.shape.prefill, step.shape.decodes] for step in steps])
    return judged(_linear(_relative(features, [step.us for step in steps])), steps)


def fit_trained_physics(steps: Sequence[MeasuredStep], on: Deployment) -> Fit:
    """Its β for a model on some GPUs; its α, which no step shows, are 0. Raises ConfigError for fewer than three steps."""
    _check(steps)
    features = np.array([_contributions(steps, index, on) for index in _FITTED]).T
    beta = [0.0] * 10
    for index, value in zip(_FITTED, _relative(features, [step.us for step in steps]), strict=True):
        beta[index] = float(value)
    return judged(TrainedPhysicsLatency((0.0, 0.0, 0.0), tuple(beta), deployment=on), steps)


def fit_timeline(rows: Sequence[Measured]) -> Fit:
    """`linear` from what became of requests, whose steps nobody recorded: by accounting.

    While a request decodes, each step gives it one token. So from its first to its last token there are out - 1 steps, and

        last - first = β0 · (out - 1) + β1 · tokens of prefill meanwhile + β2 · tokens of decode meanwhile

    where a prompt is prefilled evenly between its scheduling and its first token, and its answer comes evenly then. Residuals
    are of these times. Raises ConfigError for fewer than three requests with more than one token.
    """
    decoding = [row for row in rows if row.output_tokens > 1 and row.last_token > row.first_token]
    if len(decoding) < _FEWEST:
        raise ConfigError(f"{len(decoding)} requests with two tokens or more are too few", hint=f"give at least {_FEWEST}")
    start = np.array([row.first_token for row in decoding])
    end = np.array([row.last_token for row in decoding])
    features = np.stack(
        [
            np.array([row.output_tokens - 1.0 for row in decoding]),
            sum(row.prompt_tokens * _overlap(start, end, row.scheduled, row.first_token) for row in rows),
            sum((row.output_tokens - 1) * _overlap(start, end, row.first_token, row.last_token) for row in rows),
        ],
        axis=1,
    )
    times = (end - start) * SECOND
    beta = _relative(features, times)
    return Fit(_linear(beta), residuals(list(times), list(features @ beta)))


def _overlap(start: Floats, end: Floats, first: float, last: float) -> Floats:
    """Which share of `first` to `last` lies in each of the intervals."""
    if last <= first:
        return np.array((start <= first) & (first < end), dtype=float)
    shared: Floats = np.maximum(0.0, np.minimum(end, last) - np.maximum(start, first)) / (last - first)
    return shared


def _relative(features: Floats, times: Sequence[float] | Floats) -> Floats:
    weights = 1 / np.array(times)
    return non_negative(features * weights[:, None], np.ones(len(weights)))


def _linear(beta: Floats) -> LinearLatency:
    b0, b1, b2 = (float(f"{b:.6g}") for b in beta)
    return LinearLatency((b0, b1, b2))


def _contributions(steps: Sequence[MeasuredStep], index: int, on: Deployment) -> list[float]:
    """What one coefficient of 1 adds to each step, in µs."""
    beta = tuple(float(i == index) for i in range(10))
    model = replace(TrainedPhysicsLatency((0.0, 0.0, 0.0), beta), deployment=on).compiled(_PRECISE)
    return [model.step_time(step.shape) / _PRECISE for step in steps]


def _check(steps: Sequence[MeasuredStep]) -> None:
    if len(steps) < _FEWEST:
        raise ConfigError(f"{len(steps)} steps are too few", hint=f"give at least {_FEWEST}, and better a few hundred")
