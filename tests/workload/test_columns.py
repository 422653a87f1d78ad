"""Columns of draws: they are what draws one by one give, and leave the random stream where those leave it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from random import Random

import pytest

from maitred.workload import ArrivalProcess, LengthDistribution, parse_arrival_process, parse_lengths
from maitred.workload.columns import ROWS, draw_arrivals, draw_lengths
from maitred.workload.lengths import NormalLength, UnitDraw

COUNT = ROWS + 500


class Doubled(NormalLength):
    """Draws otherwise than its base."""

    def draw(self, uniform: UnitDraw) -> int:
        return 2 * super().draw(uniform)


@pytest.mark.parametrize(
    "lengths",
    [
        parse_lengths("normal:500,150"),
        parse_lengths("normal:2,90000"),
        parse_lengths("gaussian:300.5,100,200,310"),
        parse_lengths("lognormal:500,300"),
        Doubled(500, 150),
    ],
)
def test_lengths_are_those_of_single_draws(lengths: LengthDistribution) -> None:
    bulk, single = Random("lengths"), Random("lengths")
    assert draw_lengths(lengths, bulk, COUNT) == [lengths.draw(single.random) for _ in range(COUNT)]
    assert bulk.random() == single.random()


@pytest.mark.parametrize("process", ["poisson", "gamma:2.5", "normalized"])
@pytest.mark.parametrize("mean_gap", [0.3, 1e6 / 60, 1e12])
def test_arrivals_are_the_rounded_sums_of_single_gaps(process: str, mean_gap: float) -> None:
    at, instants = 0.0, []
    for gap in islice(parse_arrival_process(process).gaps(Random("gaps").random, COUNT), COUNT):
        at += mean_gap * gap
        instants.append(round(at))
    columns = draw_arrivals(parse_arrival_process(process), Random("gaps"), mean_gap, COUNT)
    assert list(chain.from_iterable(columns)) == instants


class Few(ArrivalProcess):
    """Two arrivals, the first one before the run."""

    syntax = "few"

    def gaps(self, uniform: UnitDraw, expected: float) -> Iterator[float]:
        return iter((-0.5, 2.0))


def test_a_process_that_ends_is_not_asked_again_and_its_negative_gaps_show() -> None:
    assert list(draw_arrivals(Few(), Random("gaps"), 10.0, COUNT)) == [[-5, 15]]
