"""A figure of requests in each resample of a bootstrap of blocks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maitred.study.what_if.world import Floats

RESAMPLES: Final = 1000
_POINTS: Final = 2000
"""Values by which a distribution is known; of more, as many quantiles."""


def resampled_figure(values: Floats, block: NDArray[np.int_], weights: NDArray[Any], quantile: float | None) -> Floats:
    """Return the mean (`quantile` is None) or the quantile of the values in each resample; NaN in those without values.

    `block` has the block of each value, and `weights`, of the shape (resamples, blocks), how often each block was drawn. A
    quantile is the smallest value with enough weight up to it. Values may be infinite.
    """
    if not len(values):
        return np.full(len(weights), np.nan)
    if quantile is None:
        return _means(values, block, weights)
    # No interpolation: between a value and an infinite one there is nothing.
    points = values if len(values) <= _POINTS else np.quantile(values, np.linspace(0, 1, _POINTS), method="inverted_cdf")
    points = np.unique(points)
    counts = np.zeros((weights.shape[1], len(points)))
    np.add.at(counts, (block, np.searchsorted(points, values)), 1.0)
    below = weights @ counts.cumsum(axis=1)
    total = below[:, -1]
    at = (below < (quantile * total)[:, None] - 1e-9).sum(axis=1)
    found: Floats = np.where(total > 0, points[np.minimum(at, len(points) - 1)], np.nan)
    return found


def _means(values: Floats, block: NDArray[np.int_], weights: NDArray[Any]) -> Floats:
    num_blocks, endless = weights.shape[1], np.isinf(values)
    sums, counts = (weights @ np.bincount(block, of, num_blocks) for of in (np.where(endless, 0.0, values), None))
    found: Floats = np.divide(sums, counts, out=np.full(len(weights), np.nan), where=counts > 0)
    # Infinity times a weight of 0 is none.
    found[weights @ np.bincount(block[endless], minlength=num_blocks) > 0] = np.inf
    return found
