"""Differences of two runs of the same requests, each with a 95 % interval.

The values that are told are medians over the runs: one with the latency model as it was fitted, and one for each seed. Where
requests queue, a millisecond decides who gets the next slot, and with it the waits of many that follow. So a single run is one
draw, as a single day is, and of few requests its p90 may be off by a quarter. An interval says how far chance and the error of
that model may have moved them. It is a percentile bootstrap of pairs: each resample takes one of the seeds, with the error of
the latency model, the answers and the draws of the router that belong to it, and blocks of consecutive requests, with
replacement, as many as there are. Both runs get the same seed and the same blocks, so that what they have in common cancels
out. Blocks, because requests that come together share a queue (H. Künsch, The jackknife and the bootstrap for general
stationary observations, 1989). A makespan and a count follow from all requests, so their intervals are those over seeds.

    blocks 1 2 3, seeds 7 8       a resample: seed 8, blocks 3, 1, 3       the p99 of their requests, under both rules
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.study.metrics import Better
from maitred.study.what_if.figures import Figure
from maitred.study.what_if.resampling import RESAMPLES, resampled_figure
from maitred.study.what_if.world import Floats, ReplayedRun

_MOST_BLOCKS, _LEAST_BLOCK = 50, 10
_TAIL: Final = 2.5


class FigureInterval(msgspec.Struct, frozen=True):
    """A 95 % interval."""

    low: float
    high: float


class ReplayedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, as it was, and under both rules. None where no request has it."""

    figure: str
    recorded: float | None
    """As it was when the run was recorded."""
    today: float | None
    """Replayed under the rules of the recording: what it differs from `recorded` by is the error of the replay."""
    other: float | None
    """Replayed under the other rules."""
    other_interval: FigureInterval | None
    """None with a single seed, and where resamples have no value."""
    difference: float | None
    """`other` - `today`."""
    interval: FigureInterval | None
    """Of the difference."""
    change_interval: FigureInterval | None
    """Of the difference as a share of `today`; None too if that is 0 in a resample."""
    probability: float | None
    """Share of the resamples in which the other rules are better; a tie counts half."""

    @property
    def change(self) -> float | None:
        """The difference as a share of `today`."""
        return None if self.difference is None or not self.today else self.difference / self.today

    @property
    def is_certain(self) -> bool:
        """Whether the interval of the difference is on one side of 0."""
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)


class Resamples:
    """The resamples of some runs of the same requests: seeds, and how often each block is in it."""

    def __init__(self, num_requests: int, num_seeds: int, seed: int) -> None:
        count = max(1, min(_MOST_BLOCKS, num_requests // _LEAST_BLOCK))
        self.block = np.arange(num_requests) * count // max(1, num_requests)
        draw = Random(f"{seed}/bootstrap").random
        self.seeds = np.array([int(draw() * num_seeds) for _ in range(RESAMPLES)])
        drawn = np.array([int(draw() * count) for _ in range(RESAMPLES * count)]).reshape(RESAMPLES, count)
        self.weights = np.zeros((RESAMPLES, count))
        np.add.at(self.weights, (np.repeat(np.arange(RESAMPLES), count), drawn.ravel()), 1.0)

    def values(self, figure: Figure, runs: Sequence[ReplayedRun], rows: NDArray[np.bool_]) -> Floats:
        """Return the figure in each resample; NaN where no request has it. `runs` are by seed."""
        found = np.full(RESAMPLES, np.nan)
        for number, run in enumerate(runs):
            mine = self.seeds == number
            if not figure.is_latency:
                value = figure.of(run, rows)
                found[mine] = np.nan if value is None else value
                continue
            values = figure.values(run)
            has = rows & ~np.isnan(values)
            found[mine] = resampled_figure(values[has], self.block[has], self.weights[mine], figure.quantile)
        return found


def compare_runs(
    wanted: Mapping[Figure, NDArray[np.bool_]],
    truth: ReplayedRun,
    today: Sequence[ReplayedRun],
    other: Sequence[ReplayedRun],
    seed: int = 42,
) -> list[ReplayedDifference]:
    """Return each figure of `wanted`, which has the requests of each. The first run of a side is without a seed; the others,
    by seed, give the intervals."""
    drawn = (today[1:], other[1:])
    resamples = Resamples(len(truth.outcome), len(drawn[0]), seed) if drawn[0] else None
    return [_difference(figure, rows, truth, (today, other), drawn, resamples) for figure, rows in wanted.items()]


def _difference(
    figure: Figure,
    rows: NDArray[np.bool_],
    truth: ReplayedRun,
    runs: tuple[Sequence[ReplayedRun], Sequence[ReplayedRun]],
    drawn: tuple[Sequence[ReplayedRun], Sequence[ReplayedRun]],
    resamples: Resamples | None,
) -> ReplayedDifference:
    today, other = (figure.of_several(side, rows) for side in runs)
    own = between = relative = probability = None
    if resamples is not None:
        before, after = (resamples.values(figure, side, rows) for side in drawn)
        own, between = _interval(after), _interval(after - before)
        relative = None if (before == 0).any() else _interval(after / before - 1)
        gains = (before - after) if figure.metric.better is Better.LOWER else (after - before)
        gains = gains[~np.isnan(gains)]
        probability = float(np.mean(gains > 0) + np.mean(gains == 0) / 2) if len(gains) else None
    return ReplayedDifference(
        figure=figure.name,
        recorded=figure.of(truth, rows),
        today=today,
        other=other,
        other_interval=own,
        difference=None if today is None or other is None else other - today,
        interval=between,
        change_interval=relative,
        probability=probability,
    )


def _interval(values: Floats) -> FigureInterval | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.percentile(known, (_TAIL, 100 - _TAIL)).tolist()
    return FigureInterval(low, high)
