"""Bootstrap: the confidence interval of a mean difference, by the percentile bootstrap over seeds.

Seeds are drawn with replacement, as many as there are, 10,000 times; each time the differences of the drawn seeds are averaged.
The interval lies between the 2.5th and the 97.5th percentile of these averages (B. Efron, R. Tibshirani: An Introduction to the
Bootstrap, 1993, chapter 13). A draw takes a seed with everything that depends on it (the workload, the error of the latency
model), and always a pair, so that what both sides have in common cancels out.

    differences of 3 seeds: 1, 2, 6     a resample: seeds 3, 1, 3     its mean: (6 + 1 + 6) / 3 = 4.33

With few seeds such intervals are somewhat too narrow: ten seeds are a start, thirty are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95


class BootstrapInterval(msgspec.Struct, frozen=True):
    """The confidence interval of a mean, and the share of resamples above 0."""

    low: float
    high: float
    above: float
    """The share of resamples whose mean is above 0; a mean of 0 counts half."""


def bootstrap(differences: Sequence[float], seed: int) -> BootstrapInterval | None:
    """Return the interval of the mean difference, or None for fewer than two differences. The random stream is
    `seed`/bootstrap."""
    if len(differences) < 2:
        return None
    means = np.asarray(differences, dtype=np.float64)[_draws(len(differences), seed)].mean(axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(means, (tail, 100 - tail)).tolist()
    above = (np.count_nonzero(means > 0) + np.count_nonzero(means == 0) / 2) / RESAMPLES
    return BootstrapInterval(low, high, float(above))


@cache
def _draws(count: int, seed: int) -> NDArray[Any]:
    """Return the indices of the differences in each resample, in rows. They are the same for every metric."""
    uniform = Random(f"{seed}/bootstrap").random
    drawn = np.fromiter((uniform() for _ in range(RESAMPLES * count)), dtype=np.float64, count=RESAMPLES * count)
    return (drawn * count).astype(np.int32).reshape(RESAMPLES, count)
