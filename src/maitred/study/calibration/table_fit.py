"""A step table from measured steps at any points.

The table has points at powers of two of the measured numbers. Its values are those with the interpolation nearest to the
measurements, by relative error. Where measurements are few, the values stay near a plain fit that is linear in prefill tokens,
decodes and context:

    minimise  Σ ρ((interpolated - measured) / interpolated) + λ · Σ ((value - plain) / plain)²     over all values

ρ is Huber's loss (`robust`), so that a few steps with wrong times do not bend the table.

Example of an axis: measured numbers from 3 to 100 give the points 3, 4, 8, 16, 32, 64 and 100. If at most 6 points are wanted,
every second power remains: 3, 4, 16, 64, 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from maitred.core.errors import ConfigError
from maitred.instance.latency import Grid, StepTable, TableLatency
from maitred.instance.latency.step_table import Axis, interpolation_point
from maitred.study.calibration.fitting import Fit, evaluate_fit
from maitred.study.calibration.least_squares import Floats
from maitred.study.calibration.measurements import MeasuredStep
from maitred.study.calibration.robust import huber_weights, robust_fit

_MIN_STEPS = 10
_RIDGE = 1e-3
"""λ."""
_ROUNDS = 12
"""Times that the fit is repeated with the weights of the errors before (`robust`)."""
_LEAST_SHARE = 0.05
"""Least share of a measured time that counts as its prediction."""
_MAX_TICKS = {2: 16, 4: 6}
"""Most points on one axis, by the number of axes."""
TablePoint = tuple[float, ...]


def fit_table(steps: Sequence[MeasuredStep], source: str = "") -> Fit:
    """Fit a step table. Raises ConfigError for fewer than ten steps."""
    if len(steps) < _MIN_STEPS:
        raise ConfigError(f"{len(steps)} steps are too few for a table", hint=f"give at least {_MIN_STEPS}, or fit linear")
    plain = _linear_prior(steps)
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


def _linear_prior(steps: Sequence[MeasuredStep]) -> Floats:
    """Return the µs of a step, of a token of prefill, of a decode, and of a token of context."""
    features = np.array([[1.0, step.shape.prefill_tokens, step.shape.num_decodes, step.shape.context_tokens] for step in steps])
    return robust_fit(features, np.array([step.us for step in steps]))


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
        placed = [interpolation_point(axis, x) for axis, x in zip(ticks, point, strict=True)]
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
