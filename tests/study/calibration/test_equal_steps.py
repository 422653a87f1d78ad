"""Groups of equal steps: their means show the error of a model that the noise of single steps hides."""

from __future__ import annotations

from math import sqrt
from random import Random

import numpy as np
import pytest

from maitred.core.contracts import BatchShape
from maitred.study.calibration.equal_steps import compare_equal_steps, group_of
from maitred.study.calibration.fitting import fit_linear
from maitred.study.calibration.measurements import MeasuredStep

ONE, SIXTEEN = BatchShape(1, 100), BatchShape(16, 1_600)
GROUPS = np.array([group_of(ONE)] * 10 + [group_of(SIXTEEN)] * 10)
TIMES = np.array([1.0, 3.0] * 5 + [3.0, 5.0] * 5)


@pytest.mark.parametrize(
    ("predicted", "misfit"),
    [((2.0, 4.0), 0.0), ((3.0, 3.0), sqrt((0.5**2 + 0.25**2) / 2)), ((2.2, 4.4), 0.1)],
)
def test_the_misfit_is_that_of_the_means(predicted: tuple[float, float], misfit: float) -> None:
    found = compare_equal_steps(GROUPS, TIMES, np.repeat(predicted, 10))
    assert found is not None
    assert found.misfit == pytest.approx(misfit)
    assert found.noise == pytest.approx(sqrt((0.5**2 + 0.25**2) / 2))  # 1 of 2, and 1 of 4
    assert (found.groups, found.covered) == (2, 1.0)


def test_groups_of_few_steps_say_nothing() -> None:
    assert compare_equal_steps(GROUPS[1:], TIMES[1:], TIMES[1:]) is None  # 9 and 10: only half of the steps are in a group


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BatchShape(1, 100), BatchShape(2, 100)),
        (BatchShape(8, 1_000), BatchShape(8, 4_000)),
        (BatchShape(8, 1_000), BatchShape(8, 1_000, 64)),
        (BatchShape(8, 1_000, 64), BatchShape(8, 1_000, 128)),
    ],
)
def test_steps_of_other_sizes_are_of_other_groups(one: BatchShape, other: BatchShape) -> None:
    assert group_of(one) != group_of(other)
    assert group_of(BatchShape(9, 1_100)) == group_of(BatchShape(10, 1_200))


def steps(cost: dict[int, float]) -> list[MeasuredStep]:
    """Return 40 steps for each number of sequences, of which each takes a third to nine thirds of its cost."""
    rng = Random(3)
    return [
        MeasuredStep(BatchShape(n, 100 * n), us * rng.choice((1 / 3, 2 / 3, 1, 1, 1, 2)))
        for n, us in cost.items()
        for _ in range(40)
    ]


def test_a_fit_to_noisy_steps_is_not_poor_if_their_means_are_right() -> None:
    found = fit_linear(steps({1: 2_000.0, 4: 2_300.0, 16: 3_500.0})).residuals
    assert found.mape > 0.35  # poor by single steps
    assert found.equal is not None
    assert found.equal.misfit < 0.1
    assert found.quality in ("excellent", "good")
    assert found.model_error == found.equal.misfit < 0.2 * found.sd


def test_a_wrong_model_is_poor_however_its_errors_are_averaged() -> None:
    found = fit_linear(steps({1: 9_000.0, 4: 1_000.0, 16: 8_000.0, 64: 900.0})).residuals
    assert found.equal is not None
    assert found.equal.misfit > 0.5
    assert found.quality == "poor"
