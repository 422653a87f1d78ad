"""Interpolation between the points of grids."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import pytest

from maitred.instance.latency.interpolation import interpolate, locate


@pytest.mark.parametrize("num_axes", [1, 2, 3, 4])
def test_a_value_is_the_mean_of_the_corners_by_their_nearness(num_axes: int) -> None:
    random = Random(num_axes)
    for _ in range(200):
        axes = tuple(
            tuple(float(x) for x in sorted(random.sample(range(50), random.choice((1, 2, 5))))) for _ in range(num_axes)
        )
        values = tuple(random.uniform(0, 100) for _ in range(prod(map(len, axes))))
        point = [random.choice((*axis, random.uniform(0, 60))) for axis in axes]
        expected = 0.0
        for corner in product((0, 1), repeat=num_axes):
            weight, place = 1.0, 0
            for axis, x, is_upper in zip(axes, point, corner, strict=True):
                index, share = locate(axis, x)
                weight *= share if is_upper else 1 - share
                place = place * len(axis) + min(index + is_upper, len(axis) - 1)
            expected += weight * values[place]
        assert interpolate(axes, values, point) == pytest.approx(expected)


def test_it_goes_straight_on_after_the_last_point_and_is_level_before_the_first() -> None:
    assert locate((2.0, 4.0), 8.0) == (0, 3.0)
    assert locate((2.0, 4.0), 1.0) == (0, 0.0)
    assert interpolate(((2.0, 4.0),), (10.0, 20.0), [8.0]) == 40.0
