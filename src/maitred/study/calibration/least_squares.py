"""Non-negative least squares, after Lawson and Hanson (Solving Least Squares Problems, chapter 23).

Coefficients become active one by one, first the one along which the error falls fastest. If the unconstrained solution for the
active ones makes one of them negative, the step towards it ends where the first of them reaches 0, and that one becomes
inactive again.

    features (1, 1) and (1, 2), target (2, 1): the unconstrained solution is 3 and -1. The error falls fastest along the first
    one, which becomes 1.5. Along the second one the error does not fall then, so the result is 1.5 and 0
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


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
