"""Fitting: coefficients of latency models from measurements, their residuals, and the file of a fitted model.

Coefficients minimise the relative errors, robustly (`robust`), and are never negative. So a step of 10 ms and a step of 300 ms
count alike, because a model should be right within some percent, and a few steps that were logged with a tenth of their time
count as a few steps.

Example: 10 decodes took 5,600 µs, 20 decodes 6,200, and 100 prefill tokens alone 6,750. `fit_linear` finds 5,000 µs per step,
17.5 per prefill token and 60 per decode, without an error.

`write_fit` writes a model as a YAML file for `--config`, with its tables beside it. The file also contains the other keys of
the engine that differ from their defaults, because coefficients hold only for one model on one kind of GPU, and the errors that
`maitred validate` prints hold for the engine of the folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.units import SECOND
from maitred.files import open_output
from maitred.instance import InstanceConfig
from maitred.instance.catalogue.resolving import encode_step_table
from maitred.instance.latency import Deployment, LatencyConfig, LinearLatency, TableLatency, TrainedPhysicsLatency
from maitred.study.calibration.equal_steps import EqualSteps, StepGroup, compare_equal_steps, group_of
from maitred.study.calibration.least_squares import Floats
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep
from maitred.study.calibration.robust import NORMAL_SCALE, robust_fit

_QUALITIES = ((0.10, 0.95, "excellent"), (0.20, 0.85, "good"), (0.35, 0.70, "fair"))
"""BLIS's words: largest mean absolute percentage error, and smallest Pearson's r."""
_MISFITS = ((0.05, "excellent"), (0.10, "good"), (0.20, "fair"))
"""The same words, where the noise of single steps is known: largest misfit (`equal_steps`)."""
_WORDS = ("excellent", "good", "fair", "poor")
_OUTLIER_SCALES, _LEAST_OUTLIER = 6.0, 0.05
_LEAST_INLIERS = 0.85
"""Share of the measurements that are no outliers, below which all of them count."""
_MIN_ROWS = 3
_PRECISE = 1e6
"""Models answer in whole µs. Scaled by this factor, the contribution of a coefficient is known to 1e-6 µs."""
_FITTED = (0, 1, 2, 3, 5, 8, 9)
"""β1 β2 β3 β4 β6 β1b β2b of trained-physics. β5, β7 and β8 are constants of a step, as β3 is for one model on one kind of GPU,
so measurements there cannot tell them apart."""


class Residuals(msgspec.Struct, frozen=True):
    """Relative errors (predicted - measured) / measured, as shares of 1."""

    count: int
    mean: float
    """The bias."""
    sd: float
    p50: float
    """Percentiles of the absolute values, and `mape`, their mean."""
    p90: float
    p99: float
    mape: float
    r_squared: float
    """Share of the measured variance that the predictions explain."""
    pearson: float
    quality: str
    """excellent, good, fair or poor: by `mape` and `pearson` without the outliers or by the misfit of `equal`, whichever is
    better."""
    outliers: int = 0
    """Measurements that are far from the others: beyond six times the scale of the errors."""
    equal: EqualSteps | None = None
    """What groups of equal steps say, if the measurements are of steps and there are enough."""

    @property
    def model_error(self) -> float:
        """The standard deviation of what the model itself is wrong by: the misfit, or all of it where the noise is unknown."""
        return self.sd if self.equal is None else self.equal.misfit


def compute_residuals(
    measured: Sequence[float], predicted: Sequence[float], groups: Sequence[StepGroup] | None = None
) -> Residuals:
    """Return the residuals of at least one pair. Measured values are above 0. `groups` has the group of each step."""
    truth, guess = np.array(measured, dtype=float), np.array(predicted, dtype=float)
    relative = guess / truth - 1
    size = np.abs(relative)
    spread = float(((truth - truth.mean()) ** 2).sum())
    r_squared = 1 - float(((truth - guess) ** 2).sum()) / spread if spread else float(np.allclose(truth, guess))
    pearson = _pearson(truth, guess)
    mape = float(size.mean())
    inliers = _inliers(truth, guess)
    # A few wrong lines in a log must not condemn a good fit; many are no outliers, and then the fit is poor.
    kept = inliers if inliers.mean() >= _LEAST_INLIERS else np.ones(len(truth), dtype=bool)
    equal = None if groups is None else compare_equal_steps(np.array(groups)[kept], truth[kept], guess[kept])
    return Residuals(
        count=len(truth),
        mean=float(relative.mean()),
        sd=float(relative.std()),
        p50=float(np.percentile(size, 50)),
        p90=float(np.percentile(size, 90)),
        p99=float(np.percentile(size, 99)),
        mape=mape,
        r_squared=r_squared,
        pearson=pearson,
        quality=min(_quality(truth[kept], guess[kept]), _fitness(equal), key=_WORDS.index),
        outliers=int(np.count_nonzero(~inliers)),
        equal=equal,
    )


def _inliers(truth: Floats, guess: Floats) -> NDArray[np.bool_]:
    """Return which errors are no outliers: at most six times their scale, or 5 %."""
    errors = np.abs((truth - guess) / np.maximum(guess, 1e-9))
    within: NDArray[np.bool_] = errors <= max(_LEAST_OUTLIER, _OUTLIER_SCALES * NORMAL_SCALE * float(np.median(errors)))
    return within


def _quality(truth: Floats, guess: Floats) -> str:
    """Return BLIS's word for a fit."""
    mape = float(np.abs(guess / truth - 1).mean())
    pearson = _pearson(truth, guess)
    return next((word for error, r, word in _QUALITIES if mape < error and pearson > r), "poor")


def _fitness(equal: EqualSteps | None) -> str:
    """Return the word for a fit by its misfit; poor where that is not known."""
    return "poor" if equal is None else next((word for misfit, word in _MISFITS if equal.misfit < misfit), "poor")


def _pearson(truth: Floats, guess: Floats) -> float:
    varied = truth.std() > 0 and guess.std() > 0
    return float(np.corrcoef(truth, guess)[0, 1]) if varied else float(np.allclose(truth, guess, rtol=_QUALITIES[0][0]))


class Fit(msgspec.Struct, frozen=True):
    """A latency model and its residuals."""

    latency: LatencyConfig
    residuals: Residuals
    engine: InstanceConfig = InstanceConfig()
    """The keys of an instance for which the model holds: model and GPUs, or the measured engine."""
    measured: Sequence[float] = ()
    """The measured times, in µs."""
    predicted: Sequence[float] = ()
    """What the model says of each."""

    @classmethod
    def of(
        cls,
        latency: LatencyConfig,
        measured: Sequence[float],
        predicted: Sequence[float],
        engine: InstanceConfig | None = None,
        groups: Sequence[StepGroup] | None = None,
    ) -> Fit:
        """Return a model with its residuals on these times, in µs. `groups` has the group of each step."""
        return cls(latency, compute_residuals(measured, predicted, groups), engine or InstanceConfig(), measured, predicted)


def evaluate_fit(latency: LatencyConfig, steps: Sequence[MeasuredStep]) -> Fit:
    """Return `latency` with its residuals on `steps`."""
    model, groups = latency.compiled(), [group_of(step.shape) for step in steps]
    return Fit.of(latency, [step.us for step in steps], [model.step_time(step.shape) for step in steps], groups=groups)


def fit_linear(steps: Sequence[MeasuredStep]) -> Fit:
    """Fit β0 + β1 · prefill tokens + β2 · decode tokens. Raises ConfigError for fewer than three steps."""
    _check(steps)
    features = np.array([[1.0, step.shape.prefill_tokens, step.shape.num_decodes] for step in steps])
    return evaluate_fit(_linear_latency(_fit_relative(features, [step.us for step in steps])), steps)


def fit_trained_physics(steps: Sequence[MeasuredStep], deployment: Deployment) -> Fit:
    """Fit the β of a model on some GPUs. Its α, which steps do not show, are 0. Raises ConfigError for under three steps."""
    _check(steps)
    features = np.array([_contributions(steps, index, deployment) for index in _FITTED]).T
    beta = [0.0] * 10
    for index, value in zip(_FITTED, _fit_relative(features, [step.us for step in steps]), strict=True):
        beta[index] = float(value)
    return evaluate_fit(TrainedPhysicsLatency((0.0, 0.0, 0.0), tuple(beta), deployment=deployment), steps)


def fit_timeline(*timelines: Sequence[MeasuredRequest]) -> Fit:
    """Fit `linear` to timelines of requests, each of a run of its own, without knowing the steps, by accounting.

    While a request decodes, each step gives it one token. So there are out - 1 steps from its first to its last token, and

        last - first = β0 · (out - 1) + β1 · tokens of prefill meanwhile + β2 · tokens of decode meanwhile

    A prompt is assumed to be prefilled evenly between its scheduling and its first token, and its answer to come evenly after
    that. Residuals are of these times. Raises ConfigError for fewer than three requests with more than one token.
    """
    runs = [_accounting(rows) for rows in timelines]
    features, times = (np.concatenate(columns) for columns in zip(*runs, strict=True))
    if len(times) < _MIN_ROWS:
        raise ConfigError(f"{len(times)} requests with two tokens or more are too few", hint=f"give at least {_MIN_ROWS}")
    beta = _fit_relative(features, times)
    return Fit.of(_linear_latency(beta), times.tolist(), (features @ beta).tolist())


def _accounting(rows: Sequence[MeasuredRequest]) -> tuple[Floats, Floats]:
    """Return steps, tokens of prefill and tokens of decode while each request decoded, and how long that took, in µs."""
    decoding = [row for row in rows if row.output_tokens > 1 and row.last_token > row.first_token]
    start = np.array([row.first_token for row in decoding])
    end = np.array([row.last_token for row in decoding])
    none = np.zeros(len(decoding))
    features = np.column_stack(
        [
            np.array([row.output_tokens - 1.0 for row in decoding]),
            sum((row.prompt_tokens * _overlap(start, end, row.scheduled, row.first_token) for row in rows), none),
            sum(((row.output_tokens - 1) * _overlap(start, end, row.first_token, row.last_token) for row in rows), none),
        ]
    )
    return features, (end - start) * SECOND


def _overlap(start: Floats, end: Floats, first: float, last: float) -> Floats:
    """Return which share of the time from `first` to `last` lies in each of the intervals."""
    if last <= first:
        return np.array((start <= first) & (first < end), dtype=float)
    shared: Floats = np.maximum(0.0, np.minimum(end, last) - np.maximum(start, first)) / (last - first)
    return shared


def _fit_relative(features: Floats, times: Sequence[float] | Floats) -> Floats:
    return robust_fit(features, np.array(times))


def _linear_latency(beta: Floats) -> LinearLatency:
    b0, b1, b2 = (float(f"{b:.6g}") for b in beta)
    return LinearLatency((b0, b1, b2))


def _contributions(steps: Sequence[MeasuredStep], index: int, deployment: Deployment) -> list[float]:
    """Return the time in µs that one coefficient of 1 adds to each step."""
    beta = tuple(float(i == index) for i in range(10))
    model = replace(TrainedPhysicsLatency((0.0, 0.0, 0.0), beta), deployment=deployment).compiled(_PRECISE)
    return [model.step_time(step.shape) / _PRECISE for step in steps]


def _check(steps: Sequence[MeasuredStep]) -> None:
    if len(steps) < _MIN_ROWS:
        raise ConfigError(f"{len(steps)} steps are too few", hint=f"give at least {_MIN_ROWS}, and better a few hundred")


def write_fit(fit: Fit, path: Path, measured: str) -> list[Path]:
    """Write `fit`, made from the file `measured`, to `path`. Return all written files. Raises ConfigError if one cannot be
    written."""
    import yaml

    latency, tables = _write_latency(fit, path)
    error = min(0.999, round(fit.residuals.model_error, 4))
    config = {"instance": {**_non_default_keys(fit.engine), "latency": latency, "latency_error": error}}
    text = yaml.safe_dump(_tuples_as_lists(config), sort_keys=False, default_flow_style=None, width=120)
    _write(path, (_comment(fit.residuals, measured) + text).encode())
    return [path, *tables]


def _write_latency(fit: Fit, path: Path) -> tuple[dict[str, Any], list[Path]]:
    """Return the keys of the latency model. A step table goes to a file of its own beside `path`, which is returned too."""
    if isinstance(fit.latency, TableLatency) and fit.latency.table is not None:
        tables = path.with_suffix(".table.json")
        _write(tables, encode_step_table(fit.latency.table))
        return {"model": "table", "file": str(tables), "alpha": fit.latency.alpha}, [tables]
    latency = msgspec.to_builtins(fit.latency)
    latency.pop("deployment", None)  # follows from the model and the GPUs
    return latency, []


def _comment(found: Residuals, measured: str) -> str:
    """Return the first line of a file: what was fitted to what, and how well."""
    fitted = f"relative error {found.mean:+.1%} ± {found.sd:.1%}, R² {found.r_squared:.4f}"
    return f"# maitred calibrate {measured}: {found.count} measurements, {fitted}\n"


def _non_default_keys(engine: InstanceConfig) -> dict[str, object]:
    """Return the keys of `engine` that differ from their defaults, without its latency model."""
    values, defaults = (msgspec.to_builtins(replace(config, latency=None)) for config in (engine, InstanceConfig()))
    return {key: value for key, value in values.items() if value != defaults[key]}


def _tuples_as_lists(value: object) -> object:
    """Return the value with lists in place of tuples, which YAML does not have."""
    if isinstance(value, dict):
        return {key: _tuples_as_lists(held) for key, held in value.items()}
    return [_tuples_as_lists(held) for held in value] if isinstance(value, list | tuple) else value


def _write(path: Path, content: bytes) -> None:
    try:
        with os.fdopen(open_output(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"cannot be written: {describe_os_error(error)}", where=str(path)) from error
