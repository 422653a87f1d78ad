"""Regression: coefficients that are never negative, and that a few measurements cannot spoil.

**Non-negative least squares** is that of Lawson and Hanson (Solving Least Squares Problems, chapter 23). Coefficients become
active one by one, first the one along which the error falls fastest. If the unconstrained solution for the active ones makes
one of them negative, the step towards it ends where the first of them reaches 0, and that one becomes inactive again.

    features (1, 1) and (1, 2), target (2, 1): the unconstrained solution is 3 and -1. The error falls fastest along the first
    one, which becomes 1.5. Along the second one the error does not fall then, so the result is 1.5 and 0

**Robust fits** minimise Huber's loss of the errors relative to the prediction (P. Huber, Robust Estimation of a Location
Parameter, 1964): errors up to k·s count by their square, larger ones by their size. s is the scale of the errors, 1.4826 times
their median, and k = 1.345 loses 5 % of the efficiency of least squares where all errors are normal.

The solution is found by least squares that are weighted anew, each time by the errors before: weights of min(1, k·s / |error|).
The first solution has weights of absolute errors, because a step that seems to take a tenth of its time would count a hundred
times as much as others by its relative error.

    10 steps of 10 ms, and one logged with 1 ms: least squares of the errors relative to the measurement give 1.8 ms, this 10.0
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_TUNING: Final = 1.345
NORMAL_SCALE: Final = 1.4826
"""Standard deviation of a normal distribution over the median of its absolute values."""
_MAX_ROUNDS: Final = 50
_CLOSE: Final = 1e-6
_LEAST_SCALE: Final = 1e-6


def non_negative_least_squares(features: Floats, target: Floats) -> Floats:
    """Return the x >= 0 for which `features` @ x is nearest to `target`. Features that are always 0 get 0."""
    # Features differ by orders of magnitude (a constant, tokens, tokens of context); the tolerance needs them on one scale.
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    a = features / scale
    x = np.zeros(a.shape[1])
    inside = np.zeros(a.shape[1], dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(a.T @ target).max(initial=0.0)))
    for _ in range(10 * a.shape[1]):
        gradient = a.T @ (target - a @ x)
        # Along an active coefficient the gradient is 0 but for rounding, which must not make it active a second time.
        gradient[inside] = -np.inf
        if gradient.max() <= tolerance:
            break
        inside[gradient.argmax()] = True
        x = _step(a, target, x, inside)
    found: Floats = x / scale
    return found


def _step(a: Floats, target: Floats, x: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Step towards the solution for the active coefficients (`inside`), of which some may become inactive."""
    while True:
        solution = np.zeros_like(x)
        solution[inside] = np.linalg.lstsq(a[:, inside], target, rcond=None)[0]
        below = inside & (solution <= 0)
        if not below.any():
            return solution
        fraction = float((x[below] / (x[below] - solution[below])).min(initial=1.0))
        x = x + fraction * (solution - x)
        inside &= x > 1e-14  # rounding may leave a coefficient just above 0 that has reached it
        x[~inside] = 0.0
        if not inside.any():
            return x


def robust_fit(features: Floats, target: Floats) -> Floats:
    """Return the x for which `features` @ x is near `target` in most rows. `target` is above 0."""
    x = non_negative_least_squares(features, target)
    for _ in range(_MAX_ROUNDS):
        before, x = x, _reweighted(features, target, features @ x)
        if np.abs(x - before).max(initial=0.0) <= _CLOSE * np.abs(x).max(initial=0.0):
            break
    return x


def _reweighted(features: Floats, target: Floats, predicted: Floats) -> Floats:
    base = np.maximum(predicted, _CLOSE * target)
    root = np.sqrt(huber_weights((target - predicted) / base)) / base
    return non_negative_least_squares(features * root[:, None], target * root)


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
