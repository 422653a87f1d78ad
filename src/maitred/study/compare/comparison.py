"""What a comparison says: for every metric, both sides, their difference, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from maitred.study.compare.bootstrap import CONFIDENCE, RESAMPLES, bootstrap
from maitred.study.metrics import Better, metric

if TYPE_CHECKING:
    import polars as pl


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of two sides, over the seeds for which both have it."""

    metric: str
    better: Better
    a: float | None
    """Mean over these seeds; None: there is no such seed."""
    b: float | None
    difference: float | None
    """B - A."""
    low: float | None
    """Bounds of its 95 % confidence interval; None: with less than two seeds there is none."""
    high: float | None
    probability: float | None
    """That A beats B: the share of bootstrap resamples in which the mean of A is better, a tie by half."""
    seeds: int
    """For which both have it."""
    wins: int
    """In how many of these A is better."""
    ties: int


class Pairing(msgspec.Struct, frozen=True):
    """Two sides."""

    a: str
    b: str
    differences: tuple[Difference, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The first side against each of the others."""

    names: tuple[str, ...]
    workload: str
    slo: str
    """Both in words."""
    seeds: tuple[int, ...]
    latency_errors: tuple[float | None, ...]
    """Of the sides: relative standard deviation of their latency models; None: nobody knows it, and none is drawn."""
    same_residuals: tuple[bool, ...]
    """Of each side: whether its latency model errs with that of the first."""
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    pairings: tuple[Pairing, ...]
    figures: tuple[tuple[dict[str, float | None], ...], ...]
    """The metrics themselves, by side and seed."""

    def to_frame(self) -> pl.DataFrame:
        """A row per pairing and metric. Raises ConfigError without polars."""
        from maitred.report.frame import require_polars

        require_polars("a data frame")
        import polars as pl

        rows = [
            {"a_name": pairing.a, "b_name": pairing.b, **msgspec.to_builtins(each)}
            for pairing in self.pairings
            for each in pairing.differences
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def __str__(self) -> str:
        from maitred.study.compare.table import as_text

        return as_text(self)


def letter(number: int) -> str:
    """What the sides are called for short: A, B, ..., Z, A1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def pairing(
    names: tuple[str, str],
    a: Sequence[dict[str, float | None]],
    b: Sequence[dict[str, float | None]],
    metrics: Sequence[str],
    seed: int,
) -> Pairing:
    """Two sides, seed by seed; `seed` is that of the bootstrap."""
    return Pairing(*names, tuple(difference(name, _column(a, name), _column(b, name), seed) for name in metrics))


def difference(name: str, a: Sequence[float | None], b: Sequence[float | None], seed: int) -> Difference:
    """One metric of both sides, seed by seed."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    better = metric(name).better
    gains = [y - x if better is Better.LOWER else x - y for x, y in pairs]
    sure = bootstrap(gains, seed)
    low, high = (None, None) if sure is None else (sure.low, sure.high)
    if better is Better.HIGHER and low is not None and high is not None:
        low, high = -high, -low
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


def _column(side: Sequence[dict[str, float | None]], name: str) -> list[float | None]:
    return [figures[name] for figures in side]


def _mean(pairs: Sequence[tuple[float, float]], of: Callable[[tuple[float, float]], float]) -> float | None:
    return sum(map(of, pairs)) / len(pairs) if pairs else None
