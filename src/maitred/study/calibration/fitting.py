"""Fitting: latency models from measurements, and the file and the chart of a fitted model.

Coefficients minimise the relative errors, robustly (`regression`), and are never negative. So a step of 10 ms and a step of
300 ms count alike, because a model should be right within some percent, and a few steps that were logged with a tenth of their
time count as a few steps.

Example: 10 decodes took 5,600 µs, 20 decodes 6,200, and 100 prefill tokens alone 6,750. `fit_linear` finds 5,000 µs per step,
17.5 per prefill token and 60 per decode, without an error.

A step table (`fit_table`) has points at powers of two of the measured numbers. Its values are those with the interpolation
nearest to the measurements, by relative error. Where measurements are few, the values stay near a plain fit that is linear in
prefill tokens, decodes and context:

    minimise  Σ ρ((interpolated - measured) / interpolated) + λ · Σ ((value - plain) / plain)²     over all values

ρ is Huber's loss (`regression`), so that a few steps with wrong times do not bend the table.

Example of an axis: measured numbers from 3 to 100 give the points 3, 4, 8, 16, 32, 64 and 100. If at most 6 points are wanted,
every second power remains: 3, 4, 16, 64, 100.

`write_fit` writes a model as a YAML file for `--config`, with its tables beside it. The file also contains the other keys of
the engine that differ from their defaults, because coefficients hold only for one model on one kind of GPU, and the errors that
`maitred validate` prints hold for the engine of the folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.units import MILLISECOND, SECOND
from maitred.files import open_output
from maitred.instance import InstanceConfig
from maitred.instance.catalogue.resolving import encode_step_table
from maitred.instance.latency import (
    Deployment,
    Grid,
    LatencyConfig,
    LinearLatency,
    StepTable,
    TableLatency,
    TrainedPhysicsLatency,
)
from maitred.instance.latency.interpolation import Axis, locate
from maitred.report import OutputFile
from maitred.report.figure import PLOT_STYLE, plot_format, save_figure
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep
from maitred.study.calibration.regression import Floats, huber_weights, robust_fit
from maitred.study.calibration.residuals import Residuals, StepGroup, compute_residuals, group_of

_MIN_ROWS = 3
_PRECISE = 1e6
"""Models answer in whole µs. Scaled by this factor, the contribution of a coefficient is known to 1e-6 µs."""
_FITTED = (0, 1, 2, 3, 5, 8, 9)
"""β1 β2 β3 β4 β6 β1b β2b of trained-physics. β5, β7 and β8 are constants of a step, as β3 is for one model on one kind of GPU,
so measurements there cannot tell them apart."""
_MIN_STEPS = 10
_RIDGE = 1e-3
"""λ."""
_ROUNDS = 12
"""Times that the fit is repeated with the weights of the errors before (`regression`)."""
_LEAST_SHARE = 0.05
"""Least share of a measured time that counts as its prediction."""
_MAX_TICKS = {2: 16, 4: 6}
"""Most points on one axis, by the number of axes."""
TablePoint = tuple[float, ...]
_MOST: Final = 1.0
"""Largest error that is drawn where it is; larger ones are drawn at the edge."""
_BINS: Final = 60


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
    return evaluate_fit(_linear_latency(robust_fit(features, _times(steps))), steps)


def fit_trained_physics(steps: Sequence[MeasuredStep], deployment: Deployment) -> Fit:
    """Fit the β of a model on some GPUs. Its α, which steps do not show, are 0. Raises ConfigError for under three steps."""
    _check(steps)
    features = np.array([_contributions(steps, index, deployment) for index in _FITTED]).T
    beta = [0.0] * 10
    for index, value in zip(_FITTED, robust_fit(features, _times(steps)), strict=True):
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
    beta = robust_fit(features, times)
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


def _times(steps: Sequence[MeasuredStep]) -> Floats:
    return np.array([step.us for step in steps])


def fit_table(steps: Sequence[MeasuredStep], source: str = "") -> Fit:
    """Fit a step table. Raises ConfigError for fewer than ten steps."""
    if len(steps) < _MIN_STEPS:
        raise ConfigError(f"{len(steps)} steps are too few for a table", hint=f"give at least {_MIN_STEPS}, or fit linear")
    # The µs of a step, of a token of prefill, of a decode, and of a token of context.
    shapes = [(1.0, step.shape.prefill_tokens, step.shape.num_decodes, step.shape.context_tokens) for step in steps]
    plain = robust_fit(np.array(shapes), _times(steps))
    decode = [step for step in steps if not step.shape.prefill_tokens]
    mixed = [step for step in steps if step.shape.prefill_tokens]
    table = StepTable(
        decode=_grid(plain, 2, [_table_point(step)[2:] for step in decode], [step.us for step in decode]),
        mixed=_grid(plain, 4, [_table_point(step) for step in mixed], [step.us for step in mixed]),
        source=source,
    )
    return evaluate_fit(TableLatency(table=table), steps)


def _table_point(step: MeasuredStep) -> TablePoint:
    """Return tokens of prefill, tokens before them, sequences that decode, and context of each."""
    shape = step.shape
    start = shape.chunks[0].num_computed_tokens if shape.chunks else 0
    return float(shape.prefill_tokens), float(start), float(shape.num_decodes), shape.context_tokens / max(1, shape.num_decodes)


def _grid(plain: Floats, axes: int, points: Sequence[TablePoint], us: Sequence[float]) -> Grid:
    """Fit a grid to the points; without points it has the values of `plain` at a few points."""
    ticks = tuple(_ticks([point[axis] for point in points], _MAX_TICKS[axes]) for axis in range(axes))
    cells = [(0.0,) * (4 - axes) + cell for cell in product(*ticks)]
    prior = np.maximum(1.0, [plain @ (1.0, p, n, n * context) for p, _, n, context in cells])
    if not points:
        return Grid(ticks, tuple(prior))
    values = _fit_cells(prior, _weights(ticks, points), np.array(us))
    return Grid(ticks, tuple(float(value) for value in values), bounded=True)


def _fit_cells(prior: Floats, weights: Floats, times: Floats) -> Floats:
    """Return the value of each cell, by a robust ridge regression; `weights` are those of the cells at each point."""
    # Unknown is the relative change of each cell from its prior, so that the ridge pulls all cells alike.
    pull, values = np.sqrt(_RIDGE) * np.eye(len(prior)), prior
    for _ in range(_ROUNDS):
        base = np.maximum(weights @ values, _LEAST_SHARE * times)
        root = np.sqrt(huber_weights((times - weights @ values) / base)) / base
        system = np.vstack([weights * root[:, None] * prior, pull])
        target = np.concatenate([(times - weights @ prior) * root, np.zeros(len(prior))])
        values = np.maximum(0.0, prior * (1 + np.linalg.lstsq(system, target, rcond=None)[0]))
    return values


def _weights(ticks: tuple[Axis, ...], points: Sequence[TablePoint]) -> Floats:
    """Return the interpolation weight of each cell of the grid at each point."""
    found = np.zeros((len(points), prod(len(axis) for axis in ticks)))
    strides = [prod(len(axis) for axis in ticks[i + 1 :]) for i in range(len(ticks))]
    for row, point in enumerate(points):
        placed = [locate(axis, x) for axis, x in zip(ticks, point, strict=True)]
        for corner in product((0, 1), repeat=len(ticks)):
            weight = prod(share if up else 1 - share for up, (_, share) in zip(corner, placed, strict=True))
            if weight:
                found[row, sum((i + up) * stride for up, (i, _), stride in zip(corner, placed, strides, strict=True))] = weight
    return found


def _ticks(values: Sequence[float], most: int) -> Axis:
    """Return the least and the greatest value, and powers of two between them: all, or every n-th if there are too many."""
    if not values:
        return (1.0, 4096.0)
    low, high = min(values), max(values)
    powers = [2.0**n for n in range(31) if low < 2.0**n < high]
    step = -(-len(powers) // max(1, most - 2)) or 1
    return tuple(sorted({low, high, *powers[::-1][::step]}))


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


def plot_residuals(fit: Fit, path: Path, source: str) -> None:
    """Write the chart in the format of the suffix. Raises ConfigError if it cannot be written."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    measured, predicted = np.array(fit.measured), np.array(fit.predicted)
    errors = predicted / measured - 1
    num_beyond = np.count_nonzero(np.abs(errors) > _MOST)
    at_edge = f" ({num_beyond:,} beyond ±{_MOST:.0%} drawn at the edge)" if num_beyond else ""
    errors = np.clip(errors, -_MOST, _MOST)
    with mpl.rc_context(PLOT_STYLE):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        by_time, spread = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
        by_time.scatter(measured / MILLISECOND, errors, s=6, alpha=0.4, linewidths=0, color="#2a6fc9", rasterized=True)
        by_time.set(xscale="log", xlabel=f"measured, ms{at_edge}", ylabel="(predicted - measured) / measured")
        by_time.set_title(f"{source}: {len(errors):,} measurements, {fit.residuals.quality}")
        spread.hist(errors, bins=_BINS, orientation="horizontal", color="#2a6fc9")
        spread.set(xlabel="measurements")
        spread.set_title(f"mean size {fit.residuals.mape:.1%}")
        for axes in (by_time, spread):
            axes.axhline(0, color="#333333", linewidth=0.8)
            axes.yaxis.set_major_formatter(lambda share, _: f"{share:+.0%}")
    with OutputFile(path, where="--plot") as file:
        save_figure(figure, plot_format(path), file.write)
