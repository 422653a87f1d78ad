"""Robust regression: coefficients that a few measurements cannot spoil.

Coefficients are never negative, and minimise Huber's loss of the errors relative to the prediction (P. Huber, Robust Estimation
of a Location Parameter, 1964): errors up to k·s count by their square, larger ones by their size. s is the scale of the errors,
1.4826 times their median, and k = 1.345 loses 5 % of the efficiency of least squares where all errors are normal.

The solution is found by least squares that are weighted anew, each time by the errors before: weights of min(1, k·s / |error|).
The first solution has weights of absolute errors, because a step that seems to take a tenth of its time would count a hundred
times as much as others by its relative error.

    10 steps of 10 ms, and one logged with 1 ms: least squares of the errors relative to the measurement give 1.8 ms, this 10.0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from maitred.study.calibration.least_squares import Floats, non_negative_least_squares

_TUNING: Final = 1.345
NORMAL_SCALE: Final = 1.4826
"""Standard deviation of a normal distribution over the median of its absolute values."""
_MAX_ROUNDS: Final = 50
_CLOSE: Final = 1e-6
_LEAST_SCALE: Final = 1e-6

Solve = Callable[[Floats, Floats], Floats]
"""A function from features and target, both weighted, to coefficients."""


def robust_fit(features: Floats, target: Floats, solve: Solve = non_negative_least_squares) -> Floats:
    """Return the x for which `features` @ x is near `target` in most rows. `target` is above 0."""
    x = solve(features, target)
    for _ in range(_MAX_ROUNDS):
        before, x = x, _reweighted(features, target, features @ x, solve)
        if np.abs(x - before).max(initial=0.0) <= _CLOSE * np.abs(x).max(initial=0.0):
            break
    return x


def _reweighted(features: Floats, target: Floats, predicted: Floats, solve: Solve) -> Floats:
    base = np.maximum(predicted, _CLOSE * target)
    root = np.sqrt(huber_weights((target - predicted) / base)) / base
    return solve(features * root[:, None], target * root)


def huber_weights(errors: Floats) -> Floats:
    """Return the weight of each error: 1 up to 1.345 times their scale, and less beyond."""
    size = np.abs(errors)
    scale = max(_LEAST_SCALE, NORMAL_SCALE * float(np.median(size)))
    weights: Floats = np.minimum(1.0, _TUNING * scale / np.maximum(size, _LEAST_SCALE))
    return weights


def robust_line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return a and b, at least 0 each, for which a + b·x is near `y` in most rows, by Huber's loss of the errors themselves."""
    features = np.stack([np.ones(len(x)), x], axis=1)
    line = non_negative_least_squares(features, y)
    for _ in range(_MAX_ROUNDS):
        root = np.sqrt(huber_weights(y - features @ line))
        before, line = line, non_negative_least_squares(features * root[:, None], y * root)
        if np.abs(line - before).max() <= _CLOSE * max(1.0, float(np.abs(line).max())):
            break
    return float(line[0]), float(line[1])
