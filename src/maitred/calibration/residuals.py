"""How far predictions are from what was measured, in the words of BLIS too."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

_QUALITIES = ((0.10, 0.95, "excellent"), (0.20, 0.85, "good"), (0.35, 0.70, "fair"))
"""BLIS: mean absolute percentage error below, and Pearson's r above."""


class Residuals(msgspec.Struct, frozen=True):
    """Relative errors (predicted - measured) / measured, in shares of 1."""

    count: int
    mean: float
    """The bias."""
    sd: float
    p50: float
    """Of their absolute values; likewise p90, p99 and their mean, `mape`."""
    p90: float
    p99: float
    mape: float
    r_squared: float
    """Share of the measured variance that the predictions explain."""
    pearson: float
    quality: str
    """excellent, good, fair or poor, by `mape` and `pearson`."""


def residuals(measured: Sequence[float], predicted: Sequence[float]) -> Residuals:
    """Of at least one pair; measured values are above 0."""
    truth, guess = np.array(measured), np.array(predicted)
    relative = guess / truth - 1
    size = np.abs(relative)
    spread = float(((truth - truth.mean()) ** 2).sum())
    r_squared = 1 - float(((truth - guess) ** 2).sum()) / spread if spread else float(np.allclose(truth, guess))
    varied = truth.std() > 0 and guess.std() > 0
    pearson = float(np.corrcoef(truth, guess)[0, 1]) if varied else r_squared
    mape = float(size.mean())
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
        quality=next((word for error, r, word in _QUALITIES if mape < error and pearson > r), "poor"),
    )
