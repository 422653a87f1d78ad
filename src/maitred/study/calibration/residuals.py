"""Residuals: how far a latency model is from measurements, and how good that is in one word.

A step of a small model on a busy machine takes 2 or 3 ms by chance, and no model can tell which. A request sums up many steps,
so that the chance averages out, and what is left is the error of the model. So steps are put into groups that are alike
(*equal steps*):

    tokens of prefill, sequences that decode, context tokens: each none, or the same power of √2 (of 2 for the context)

Groups of ten steps or more are enough for a mean. Of each, the error is the mean prediction by the mean measurement, less 1.
The *misfit* is the root mean square of these errors, and the *noise* that of single steps around the mean of their group; both
weighted by steps. A model that knows nothing but the mean of all steps has a large misfit as soon as groups differ.

Example: ten steps of one sequence take 1 ms or 3 ms by turns, and ten of 16 sequences 3 or 5 ms. A model that says 2 and 4 ms
is wrong by 20 to 100 % for every step, and has a misfit of 0. One that says 3 ms for all has errors of 50 and -25 %: 40 %.

This is the test for lack of fit of linear regression, in relative terms: the error of the means against the pure error of
repeated measurements (N. Draper and H. Smith, Applied Regression Analysis).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log2
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.contracts import BatchShape
from maitred.study.calibration.regression import NORMAL_SCALE, Floats

_QUALITIES = ((0.10, 0.95, "excellent"), (0.20, 0.85, "good"), (0.35, 0.70, "fair"))
"""BLIS's words: largest mean absolute percentage error, and smallest Pearson's r."""
_MISFITS = ((0.05, "excellent"), (0.10, "good"), (0.20, "fair"))
"""The same words, where the noise of single steps is known: largest misfit (`compare_equal_steps`)."""
_WORDS = ("excellent", "good", "fair", "poor")
_OUTLIER_SCALES, _LEAST_OUTLIER = 6.0, 0.05
_LEAST_INLIERS = 0.85
"""Share of the measurements that are no outliers, below which all of them count."""
_LEAST_STEPS = 10
_LEAST_COVERED = 0.8
StepGroup: TypeAlias = tuple[int, int, int]


class EqualSteps(msgspec.Struct, frozen=True):
    """What is known of groups of equal steps. Shares of 1."""

    misfit: float
    noise: float
    groups: int
    covered: float
    """Share of the steps that are in a group."""


def group_of(shape: BatchShape) -> StepGroup:
    """Return the group of steps that this one is in."""
    return _power(shape.prefill_tokens, 2), _power(shape.num_decodes, 2), _power(shape.context_tokens, 1)


def _power(number: int, per_doubling: int) -> int:
    return -1 if number <= 0 else floor(per_doubling * log2(number))


def compare_equal_steps(groups: NDArray[np.int64], measured: Floats, predicted: Floats) -> EqualSteps | None:
    """Return how far predictions are from the means of the groups, or None if groups of ten steps have less than 80 % of all.

    `groups` has a row for each step.
    """
    _, numbers, counts = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
    numbers = numbers.ravel()
    many = counts >= _LEAST_STEPS
    inside = many[numbers]
    if inside.mean() < _LEAST_COVERED:
        return None
    mean = np.bincount(numbers, measured) / counts
    errors = (np.bincount(numbers, predicted) / counts / mean - 1)[many]
    around = (measured / mean[numbers] - 1)[inside]
    return EqualSteps(
        misfit=float(np.sqrt(np.average(errors**2, weights=counts[many]))),
        noise=float(np.sqrt((around**2).mean())),
        groups=int(np.count_nonzero(many)),
        covered=float(inside.mean()),
    )


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
