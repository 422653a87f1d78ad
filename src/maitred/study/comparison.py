"""Comparison: every metric of two sides, their difference with a confidence interval, and how it is shown.

The interval is the percentile bootstrap over seeds. Seeds are drawn with replacement, as many as there are, 10,000 times; each
time the differences of the drawn seeds are averaged. The interval lies between the 2.5th and the 97.5th percentile of these
averages (B. Efron, R. Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13). A draw takes a seed with everything that
depends on it (the workload, the error of the latency model), and always a pair, so that what both sides have in common cancels
out.

    differences of 3 seeds: 1, 2, 6     a resample: seeds 3, 1, 3     its mean: (6 + 1 + 6) / 3 = 4.33

With few seeds such intervals are somewhat too narrow: ten seeds are a start, thirty are better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from maitred.report.panels import Group, LimitLine, Point, Scatter
from maitred.report.table import NO_VALUE, new_table
from maitred.study.metrics import Better, Figures, Metric, find_metric, metric_heading, metric_label
from maitred.study.presentation import Presentation, ShownTable, StudyResult

if TYPE_CHECKING:
    import polars as pl


RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of two sides, over the seeds for which both have it."""

    metric: str
    better: Better
    a: float | None
    """Mean over these seeds, or None if there is no such seed."""
    b: float | None
    difference: float | None
    """B - A."""
    low: float | None
    """Lower bound of the 95 % confidence interval; None with fewer than two seeds."""
    high: float | None
    """Upper bound."""
    probability: float | None
    """Probability that A beats B: the share of bootstrap resamples in which the mean of A is better; a tie counts half."""
    seeds: int
    """Number of seeds for which both sides have the metric."""
    wins: int
    """Number of these seeds in which A is better."""
    ties: int


class Pairing(msgspec.Struct, frozen=True):
    """Two sides."""

    a: str
    b: str
    differences: tuple[Difference, ...]


class Comparison(StudyResult, frozen=True, kw_only=True):
    """The first side against each of the others."""

    names: tuple[str, ...]
    workload: str
    simulated: tuple[str, ...] = ()
    """By side: what was simulated or measured, in one line."""
    slo: str
    """The SLO in words, as `workload` is the workload in words."""
    seeds: tuple[int, ...]
    latency_errors: tuple[float | None, ...]
    """By side: the relative standard deviation of its latency model, or None if it is not known and so not drawn."""
    same_residuals: tuple[bool, ...]
    """By side: whether its latency model shares the draws of the first side."""
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    pairings: tuple[Pairing, ...]
    figures: tuple[tuple[dict[str, float | None], ...], ...]
    """The metrics by side and seed."""
    of: str = "seed"
    """What a side has several of: seeds, or runs that were made before."""

    def to_frame(self) -> pl.DataFrame:
        """Return a row per pairing and metric. Raises ConfigError without polars."""
        from maitred.report.export import require_polars

        require_polars("a data frame")
        import polars as pl

        rows = [
            {"a_name": pairing.a, "b_name": pairing.b, **msgspec.to_builtins(each)}
            for pairing in self.pairings
            for each in pairing.differences
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def presentation(self) -> Presentation:
        """Return a table for each pair, and the differences to A as a picture."""
        shown = (
            ShownTable(
                comparison_table(pairing, side_label(index)),
                f"A = {pairing.a}, {side_label(index)} = {pairing.b}",
                tuple(side_lines(self, index)),
            )
            for index, pairing in enumerate(self.pairings, 1)
        )
        return Presentation(
            title=f"A comparison of {len(self.names)} configurations",
            command="compare",
            tables=tuple(shown),
            notes=tuple(comparison_notes(self)),
            scatter=_differences(self),
        )


def side_label(number: int) -> str:
    """Return the short name of a side: A, B, ..., Z, A1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def make_pairings(
    names: Sequence[str], figures: Sequence[Sequence[Figures]], metrics: Sequence[str], seed: int
) -> tuple[Pairing, ...]:
    """Return the first side with each of the others, run by run. `figures` are by side and run; `seed` is that of the
    bootstrap."""
    first = figures[0]
    return tuple(
        Pairing(names[0], name, tuple(make_difference(key, _column(first, key), _column(side, key), seed) for key in metrics))
        for name, side in zip(names[1:], figures[1:], strict=True)
    )


def make_difference(name: str, a: Sequence[float | None], b: Sequence[float | None], seed: int) -> Difference:
    """Return one metric of both sides, given by seed."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    better = find_metric(name).better
    # Gains are above 0 where A is better, so that "A wins" means the same for every metric. The interval is one of B - A.
    gains = [y - x if better is Better.LOWER else x - y for x, y in pairs]
    sure = bootstrap(gains, seed)
    low, high = (None, None) if sure is None else (-sure.high, -sure.low) if better is Better.HIGHER else (sure.low, sure.high)
    return Difference(
        metric=name,
        better=better,
        a=_mean(pairs, lambda pair: pair[0]),
        b=_mean(pairs, lambda pair: pair[1]),
        difference=_mean(pairs, lambda pair: pair[1] - pair[0]),
        low=low,
        high=high,
        probability=None if sure is None else sure.above,
        seeds=len(pairs),
        wins=sum(gain > 0 for gain in gains),
        ties=sum(gain == 0 for gain in gains),
    )


def _column(side: Sequence[Figures], name: str) -> list[float | None]:
    return [figures[name] for figures in side]


def _mean(pairs: Sequence[tuple[float, float]], side: Callable[[tuple[float, float]], float]) -> float | None:
    return sum(map(side, pairs)) / len(pairs) if pairs else None


def side_lines(comparison: Comparison, index: int) -> Iterator[str]:
    """Yield what stands above the table of a pairing, counted from 1: the name of each side, and what was simulated."""
    pairing = comparison.pairings[index - 1]
    for number, name in ((0, pairing.a), (index, pairing.b)):
        short, said = side_label(number), comparison.simulated[number : number + 1]
        if name != short or said:
            yield ": ".join((short if name == short else f"{short} = {name}", *said))


def comparison_table(pairing: Pairing, other: str) -> Table:
    """Return a row for each metric. `other` is the short name of the second side."""
    table = new_table({"metric": "bold"}, ("A", other, f"{other} - A", "95 % interval", "A wins", "P(A)"))
    for each in pairing.differences:
        table.add_row(*_row(each))
    return table


def _row(row: Difference) -> tuple[str, ...]:
    kind = find_metric(row.metric)
    wins = f"{row.wins}/{row.seeds}" if row.seeds and row.ties < row.seeds else "="
    chance = NO_VALUE if row.probability is None or row.ties == row.seeds else f"{row.probability:.2f}"
    interval = NO_VALUE if row.low is None or row.high is None else f"{_signed(kind, row.low)}, {_signed(kind, row.high)}"
    return (
        metric_heading(row.metric, below="  "),
        kind.format(row.a),
        kind.format(row.b),
        _signed(kind, row.difference),
        interval,
        wins,
        chance,
    )


def _signed(kind: Metric, value: float | None) -> str:
    if value is None:
        return NO_VALUE
    text = kind.format(abs(value))
    return text if not value else f"{'+' if value > 0 else '-'}{text}"


def _differences(comparison: Comparison) -> Scatter:
    """Return the differences to A in percent of A. A metric that is 0 in A has none."""
    names = tuple(dict.fromkeys(each.metric for pairing in comparison.pairings for each in pairing.differences if each.a))
    groups = tuple(
        Group(label=f"{side_label(index)} - A", points=tuple(_relative(pairing.differences, names, index)))
        for index, pairing in enumerate(comparison.pairings, 1)
    )
    said = [each.text for group in groups for each in group.points]
    return Scatter(
        title="Differences to A",
        about=f"Differences in percent of A, with 95 % intervals. {'; '.join(said)}.",
        x="% of A",
        y="95 % intervals",
        groups=groups,
        limits=(LimitLine(label="no difference", axis="x", at=0),),
        names=tuple(metric_label(name) for name in names),
    )


def _relative(differences: Sequence[Difference], names: Sequence[str], index: int) -> Iterator[Point]:
    for each in differences:
        if each.metric in names and each.a and each.difference is not None:
            scale = 100 / abs(each.a)
            low, high = (None if end is None else end * scale for end in (each.low, each.high))
            change = each.difference * scale
            sure = "" if low is None or high is None else f" ({low:+.1f} to {high:+.1f} %)"
            text = f"{metric_label(each.metric)}, {side_label(index)}: {change:+.1f} %{sure}"
            # The sides of one metric stand beside one another.
            yield Point(x=change, y=names.index(each.metric) + 0.18 * (index - 1), low=low, high=high, text=text)


def comparison_notes(comparison: Comparison) -> Iterator[str]:
    """Yield what has to be known about the figures."""
    count, of = len(comparison.seeds), comparison.of
    yield f"{comparison.workload}; {count} {of if count == 1 else f'{of}s'}, the same workload for all in each."
    yield _interval_note(comparison)
    yield from _latency_error_notes(comparison)
    if any(each.metric.endswith(("goodput_rps", "slo_attainment")) for each in comparison.pairings[0].differences):
        yield f"SLO: {comparison.slo}."
    for pairing in comparison.pairings:
        short = [each for each in pairing.differences if each.seeds < count]
        if short:
            named = ", ".join(f"{each.metric} ({each.seeds})" for each in short)
            yield f"Not all {of}s of A and {pairing.b} have a figure: {named}."


def _interval_note(comparison: Comparison) -> str:
    of = comparison.of
    if len(comparison.seeds) == 1:
        more = "--seeds 10 shows" if of == "seed" else "several show"
        return f"With one {of} there is no interval: {more} how much is chance."
    return (
        f"Intervals: percentile bootstrap over {of}s, {comparison.resamples:,} resamples. A wins: the number of {of}s in "
        "which A is better. P(A): share of the resamples in which the mean of A is better, ties by half."
    )


def _latency_error_notes(comparison: Comparison) -> Iterator[str]:
    """Say which errors of latency models the intervals include."""
    errors = comparison.latency_errors
    if not errors:
        return
    unknown = ", ".join(side_label(index) for index, error in enumerate(errors) if error is None)
    if not any(errors):
        why = "it is neither configured nor published" if unknown else "latency_error is 0"
        yield f"No model error is in these figures: {why} (maitred calibrate measures it)."
        return
    known = ", ".join(f"{side_label(index)} {error:.1%}" for index, error in enumerate(errors) if error is not None)
    yield (
        f"The figures include the error of the latency models, drawn anew for each seed: {known} (standard deviation; "
        "0: exact)."
    )
    if unknown:
        yield f"They do not include that of {unknown}: it is neither configured nor published, so the intervals are too narrow."
    apart = [side_label(index) for index, same in enumerate(comparison.same_residuals) if not same]
    if apart:
        yield f"{', '.join(apart)}: the error has draws of its own, because the latency model is not that of A."
    if len(apart) < len(errors) - 1:
        yield "Sides with the same latency model on the same hardware share the draws."


class BootstrapInterval(msgspec.Struct, frozen=True):
    """The confidence interval of a mean, and the share of resamples above 0."""

    low: float
    high: float
    above: float
    """The share of resamples with a mean above 0; a mean of 0 counts half."""


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
    # Python promises to keep the stream of `Random.random`; numpy promises that for its legacy generator only. An interval must
    # not change with a version.
    uniform = Random(f"{seed}/bootstrap").random
    drawn = np.fromiter((uniform() for _ in range(RESAMPLES * count)), dtype=np.float64, count=RESAMPLES * count)
    return (drawn * count).astype(np.int32).reshape(RESAMPLES, count)
