"""Student's t: quantiles of the tables, and intervals that cover what they should."""

from __future__ import annotations

from random import Random

import pytest

from maitred.core.student_t import mean_interval, probability_at_most, t_probability, t_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (19, 2.093), (120, 1.980), (999, 1.96)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=0.001)
    assert t_quantile(0.025, degrees) == pytest.approx(-quantile, abs=0.001)


@pytest.mark.parametrize("degrees", [1, 2, 3, 8, 50, 300])
def test_half_lies_below_zero(degrees: int) -> None:
    assert t_probability(0, degrees) == pytest.approx(0.5)
    assert t_probability(1e5, degrees) == pytest.approx(1, abs=1e-4)


def test_an_interval_of_four_values() -> None:
    """1, 2, 3, 4: the mean is 2.5, the standard error 1.291 / 2 = 0.6455, times 3.182 of 3 degrees: 2.054."""
    found = mean_interval([1, 2, 3, 4])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2.5 - 2.054, 2.5 + 2.054), abs=0.001)
    assert found.half_width == pytest.approx(2.054, abs=0.001)
    assert mean_interval([1]) is None


def test_95_of_100_intervals_cover_the_mean() -> None:
    draw = Random(3)
    found = [mean_interval([draw.gauss(5, 2) for _ in range(4)]) for _ in range(2_000)]
    assert 0.93 < sum(each is not None and each.covers(5) for each in found) / len(found) < 0.97


def test_the_probability_of_a_limit() -> None:
    """Of 1, 2, 3, 4 the distance of 2.5 + 2.054 is the 97.5 % quantile."""
    assert probability_at_most([1, 2, 3, 4], 2.5) == pytest.approx(0.5)
    assert probability_at_most([1, 2, 3, 4], 4.554) == pytest.approx(0.975, abs=0.001)
    assert [probability_at_most([3], limit) for limit in (2.9, 3.1)] == [0, 1]
    assert probability_at_most([3, 3], 3) == 1
