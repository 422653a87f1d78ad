"""The goal of a search: limits that are to hold (`--slo`), and what it may cost the classes.

    score = (excess, price)        the smaller one is better, the excess first

    excess   by which share the limits are exceeded, summed over the limits that are; 0 if all hold. A request that was not
             served counts as one that took for ever, so that refusing requests never helps a limit. And ten times the share of
             the requests of a class that are not served though they are today, beyond what is allowed (`--may-refuse`)
    price    how much longer requests take than today: the mean over the classes of (mean E2E) / (mean E2E today), where a
             request that was not served took as long as the longest one of all does today

Example: the limit is 500 ms and the p99 of chats is 600 ms, an excess of 0.2. Chats take 0.8 of today's time and bulk work 1.3:
a price of 1.05.

**How sure it is.** The requests are cut into blocks of time with as many requests each. A resample draws blocks with
replacement, and with it all of the requests in them under both rules and in all runs of a seed; the probability that rules are
better than today is the share of resamples in which their score is (a tie counts half). The intervals are those of 95 % of the
resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.errors import ConfigError
from maitred.core.units import MILLISECOND
from maitred.sim import Outcome
from maitred.study.metrics import Better, Constraint, parse_constraint
from maitred.study.what_if.figures import Figure, Groups, find_figure
from maitred.study.what_if.recorded import RecordedRequest
from maitred.study.what_if.resampling import RESAMPLES, resampled_figure
from maitred.study.what_if.world import Floats, ReplayedRun

_NUM_BLOCKS: Final = 30
_NEVER: Final = 100.0
"""The excess of a limit on a figure that is infinite, as too many requests were not served; and more by their share."""
_REFUSED_WEIGHT: Final = 10.0
_INTERVAL: Final = (0.025, 0.975)


class Score(NamedTuple):
    """How good rules are: smaller is better, the excess first."""

    excess: float
    price: float


class Limit(msgspec.Struct, frozen=True):
    """One limit that is to hold."""

    text: str
    figure: Figure
    constraint: Constraint

    @property
    def is_of_streams(self) -> bool:
        """Whether only answers that stream count: of others nobody sees a first token."""
        return self.figure.plain.startswith("ttft")

    def counted(self, groups: Groups, streams: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the requests that it is about."""
        rows = groups.rows(self.figure.group)
        return rows & streams if self.is_of_streams else rows

    def excess_of(self, value: float, unserved: float) -> float:
        """Return by which share a value exceeds it; `unserved` is the share of requests that were not served."""
        if math.isnan(value):  # A resample without such requests.
            return 0.0
        if math.isinf(value):
            return _NEVER * (1 + unserved)
        return min(_NEVER, max(0.0, self.constraint.excess({self.constraint.metric: value})))


def parse_limit(text: str) -> Limit:
    """Return the limit that `interactive.ttft_p99_ms <= 500` states. Raises ConfigError."""
    constraint = parse_constraint(text, "--slo")
    figure = find_figure(constraint.metric, "--slo")
    if not figure.is_latency or constraint.better is not Better.LOWER or constraint.limit <= 0:
        hint = "interactive.ttft_p99_ms <= 500"
        raise ConfigError(f"{text!r} is no upper limit of a latency", where="--slo", hint=hint)
    return Limit(text, figure, constraint)


def streaming(requests: Sequence[RecordedRequest]) -> NDArray[np.bool_]:
    """Return which requests have asked for a stream."""
    return np.array([each.stream for each in requests], dtype=bool)


class Part:
    """Some of the recorded requests, by which rules are judged."""

    def __init__(
        self,
        requests: Sequence[RecordedRequest],
        rows: NDArray[np.bool_],
        limits: Sequence[Limit],
        today: ReplayedRun,
        may_refuse: float = 0.01,
    ) -> None:
        """`rows` are the requests that count, `today` is a run under the rules in force. Limits of a class or tenant without
        requests here hold."""
        groups = Groups(requests)
        streams = streaming(requests)
        self._rows = {limit.text: rows & limit.counted(groups, streams) for limit in limits}
        self.limits = [limit for limit in limits if self._rows[limit.text].any()]
        self.classes = {name: rows & of_class for name, of_class in groups.classes.items() if (rows & of_class).any()}
        served = today.e2e[~np.isnan(today.e2e)]
        self._longest = float(served.max()) if len(served) else 1.0
        self._today = {name: self._mean_time(today, of_class) for name, of_class in self.classes.items()}
        self.may_refuse, self._served_today = may_refuse, self.served(today)
        index = np.flatnonzero(rows)
        self.blocks = np.full(len(requests), -1)
        count = min(_NUM_BLOCKS, len(index))
        self.blocks[index] = np.arange(len(index)) * count // max(1, len(index))
        self.num_blocks = count

    def score(self, run: ReplayedRun) -> Score:
        """Return the score of one run."""
        excess = sum(limit.excess_of(self.value(limit, run), self._unserved(limit, run)) for limit in self.limits)
        refused = sum(self.refused_excess(self._served_today[name], served) for name, served in self.served(run).items())
        return Score(excess + float(refused), float(np.mean([*self.prices(run).values()])))

    def refused_excess(self, today: Any, other: Any) -> Any:
        """Return the excess for shares of a class that are served, numbers or arrays."""
        return _REFUSED_WEIGHT * np.maximum(0.0, today - other - self.may_refuse)

    def value(self, limit: Limit, run: ReplayedRun) -> float:
        """Return the figure of a limit; infinite if too many requests were not served."""
        values, quantile = self.values(limit, run), limit.figure.quantile
        if not len(values):
            return math.inf
        return float(values.mean() if quantile is None else np.quantile(values, quantile, method="inverted_cdf"))

    def values(self, limit: Limit, run: ReplayedRun) -> Floats:
        """Return the latencies of the requests that a limit is about, in ms."""
        return self._times(limit, run)[self._rows[limit.text]]

    def blocks_of(self, limit: Limit) -> NDArray[np.int_]:
        """Return the blocks of these requests."""
        found: NDArray[np.int_] = self.blocks[self._rows[limit.text]]
        return found

    def prices(self, run: ReplayedRun) -> dict[str, float]:
        """Return how much longer requests take than today, by class."""
        return {name: self._mean_time(run, of_class) / (self._today[name] or 1.0) for name, of_class in self.classes.items()}

    def times(self, run: ReplayedRun) -> Floats:
        """Return how long each request took, the longest time of today where it was not served."""
        return np.where(np.isnan(run.e2e), self._longest, run.e2e)

    def served(self, run: ReplayedRun) -> dict[str, float]:
        """Return the share of requests that were served, by class."""
        return {name: float(_is_served(run)[of_class].mean()) for name, of_class in self.classes.items()}

    def _mean_time(self, run: ReplayedRun, of_class: NDArray[np.bool_]) -> float:
        return float(self.times(run)[of_class].mean())

    def _times(self, limit: Limit, run: ReplayedRun) -> Floats:
        times = run.ttft if limit.is_of_streams else run.e2e
        return np.where(np.isnan(times), np.inf, times / MILLISECOND)

    def _unserved(self, limit: Limit, run: ReplayedRun) -> float:
        values = self.values(limit, run)
        return float(np.isinf(values).mean()) if len(values) else 1.0


def _is_served(run: ReplayedRun) -> Floats:
    return np.asarray(run.outcome == Outcome.COMPLETED, dtype=np.float64)


class ForetoldFigure(msgspec.Struct, frozen=True):
    """A figure today and under other rules, with the interval of the latter and of the difference."""

    today: float
    other: float
    low: float
    high: float
    change_low: float
    change_high: float


class Judgement(msgspec.Struct, frozen=True):
    """Other rules beside today's, on a part of the traffic."""

    probability: float
    """That they are better than today."""
    excess: float
    excess_today: float
    price: float
    limits: dict[str, ForetoldFigure]
    """By limit, in ms."""
    prices: dict[str, ForetoldFigure]
    """By class: how much longer requests take than today."""
    served: dict[str, tuple[float, float]]
    """By class: the share of requests that are served, today and under the other rules."""


def judge(part: Part, today: Sequence[ReplayedRun], other: Sequence[ReplayedRun], seed: int) -> Judgement:
    """Compare the runs of other rules with those of today, seed by seed."""
    rng = np.random.default_rng(seed)
    draws = np.array(
        [np.bincount(rng.integers(0, part.num_blocks, part.num_blocks), minlength=part.num_blocks) for _ in range(RESAMPLES)]
    )
    runs = rng.integers(0, len(today), RESAMPLES)
    limits, excess = {}, np.zeros((2, RESAMPLES))
    for limit in part.limits:
        figures = np.array([_resampled_limit(part, limit, side, draws, runs) for side in (today, other)])
        limits[limit.text] = _told([_mean([part.value(limit, run) for run in side]) for side in (today, other)], figures)
        for side in (0, 1):
            excess[side] += [limit.excess_of(value, 0.0) for value in figures[side]]
    prices, by_class = {}, []
    for name, of_class in part.classes.items():
        means = np.array([_resampled_mean(part, of_class, side, draws, runs, part.times) for side in (today, other)])
        ratios = np.array([np.ones(RESAMPLES), means[1] / np.maximum(means[0], 1e-9)])
        own = _mean([part.prices(run)[name] for run in other]) / _mean([part.prices(run)[name] for run in today])
        prices[name] = _told([1.0, own], ratios)
        by_class.append(ratios[1])
        shares = [_resampled_mean(part, of_class, side, draws, runs, _is_served) for side in (today, other)]
        excess[1] += part.refused_excess(*shares)
    price = np.mean(by_class, axis=0)
    # The price of today is 1 in each resample: what is compared is the ratio.
    better = (excess[1] < excess[0] - 1e-9) | ((abs(excess[1] - excess[0]) <= 1e-9) & (price < 1 - 1e-9))
    ties = (abs(excess[1] - excess[0]) <= 1e-9) & (abs(price - 1) <= 1e-9)
    return Judgement(
        probability=float(np.mean(better + ties / 2)),
        excess=_mean([part.score(run).excess for run in other]),
        excess_today=_mean([part.score(run).excess for run in today]),
        price=float(np.mean([told.other for told in prices.values()])),
        limits=limits,
        prices=prices,
        served=_served(part, today, other),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _served(part: Part, today: Sequence[ReplayedRun], other: Sequence[ReplayedRun]) -> dict[str, tuple[float, float]]:
    sides = [[part.served(run) for run in side] for side in (today, other)]
    return {name: (_mean([each[name] for each in sides[0]]), _mean([each[name] for each in sides[1]])) for name in part.classes}


def _told(values: Sequence[float], resampled: Floats) -> ForetoldFigure:
    with np.errstate(invalid="ignore"):
        changes = resampled[1] - resampled[0]
    low, high = (float(each) for each in np.nanquantile(resampled[1], _INTERVAL, method="inverted_cdf"))
    change = np.quantile(np.nan_to_num(changes, nan=0.0), _INTERVAL, method="inverted_cdf")
    return ForetoldFigure(values[0], values[1], low, high, float(change[0]), float(change[1]))


def _resampled_limit(
    part: Part, limit: Limit, side: Sequence[ReplayedRun], draws: NDArray[np.int_], runs: NDArray[np.int_]
) -> Floats:
    found = np.zeros(len(draws))
    for index, run in enumerate(side):
        chosen = runs == index
        values, blocks = part.values(limit, run), part.blocks_of(limit)
        found[chosen] = resampled_figure(values, blocks, draws[chosen], limit.figure.quantile)
    return found


def _resampled_mean(
    part: Part,
    rows: NDArray[np.bool_],
    side: Sequence[ReplayedRun],
    draws: NDArray[np.int_],
    runs: NDArray[np.int_],
    measured: Callable[[ReplayedRun], Floats],
) -> Floats:
    found = np.zeros(len(draws))
    for index, run in enumerate(side):
        chosen = runs == index
        found[chosen] = np.nan_to_num(resampled_figure(measured(run)[rows], part.blocks[rows], draws[chosen], None))
    return found
