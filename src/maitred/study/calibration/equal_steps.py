"""Equal steps: how far a latency model is from the mean of steps that are alike, which the noise of single steps hides.

A step of a small model on a busy machine takes 2 or 3 ms by chance, and no model can tell which. A request sums up many steps,
so that the chance averages out, and what is left is the error of the model. So steps are put into groups that are alike:

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

from math import floor, log2
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.contracts import BatchShape
from maitred.study.calibration.least_squares import Floats

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
