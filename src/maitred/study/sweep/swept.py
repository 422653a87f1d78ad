"""What a sweep says: every candidate with its figures, the best of them, and those that none betters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from maitred.study.sweep.criteria import Criteria, Figures
from maitred.study.sweep.points import Point

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that has been tried."""

    number: int
    values: dict[str, Any]
    """What makes it what it is, by dotted key."""
    problem: str
    """Why it cannot be; empty: it can."""
    figures: Figures
    """Means over its seeds, and what it costs; None where a seed has no figure."""
    meets: bool
    """Whether it meets the constraints."""
    held: int
    """In how many of its seeds it does."""
    seeds: int


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a sweep."""

    criteria: Criteria
    tried: tuple[Tried, ...]
    """In the order of the grid, or of the search; one that was proposed again only once."""
    runs: tuple[dict[str, Any], ...]
    """A row for each: the point, its values, the seed, the figures."""

    @property
    def best(self) -> Tried | None:
        """By the objective, among those that meet the constraints; of equals, the better one by `pareto`, then the first."""
        order = (self.criteria.objective, *self.criteria.pareto)
        meeting = [each for each in self.tried if each.meets and each.figures.get(self.criteria.objective) is not None]
        return min(meeting, key=lambda each: [self.criteria.loss(name, each.figures) for name in order], default=None)

    @property
    def front(self) -> list[Tried]:
        """Those that none betters in one metric of `pareto` without losing in the other; the cheapest first."""
        first, second = self.criteria.pareto
        known = [each for each in self.tried if each.figures.get(first) is not None and each.figures.get(second) is not None]
        loss = self.criteria.loss
        known.sort(key=lambda each: (loss(first, each.figures), loss(second, each.figures), each.number))
        front: list[Tried] = []
        for each in known:
            if not front or loss(second, each.figures) < loss(second, front[-1].figures):
                front.append(each)
        return front

    def to_frame(self) -> pl.DataFrame:
        """A row per run. Raises ConfigError without polars."""
        from maitred.report.frame import require_polars

        require_polars("a data frame")
        import polars as pl

        names = list(self.runs[0]) if self.runs else []
        return pl.DataFrame({name: _column([row[name] for row in self.runs]) for name in names}, strict=False)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The two metrics of `pareto` against each other; also written to `path` (png, svg or pdf), if given.

        Raises ConfigError without matplotlib, and for a path that cannot be written.
        """
        from maitred.study.sweep.plot import draw, write

        figure = draw(self)
        if path is not None:
            write(figure, Path(path))
        return figure

    def __str__(self) -> str:
        from maitred.study.sweep.table import as_text

        return as_text(self)


def tried(point: Point, figures: Sequence[Figures], criteria: Criteria) -> Tried:
    """`figures`: of its runs, seed by seed."""
    each_seed: list[Figures] = [{**found, **point.costs} for found in figures]
    means = {**{name: _mean(figures, name) for name in criteria.measured}, **point.costs}
    return Tried(
        number=point.number,
        values=point.values,
        problem=point.problem,
        figures=means,
        meets=not point.problem and criteria.met(means),
        held=sum(criteria.met(found) for found in each_seed),
        seeds=len(figures),
    )


def rows(point: Point, figures: Sequence[Figures]) -> list[dict[str, Any]]:
    """Its runs."""
    return [
        {
            "point": point.number,
            **point.values,
            "seed": run.seed,
            "latency_scale": run.latency_scale,
            **point.costs,
            **found,
        }
        for run, found in zip(point.runs, figures, strict=True)
    ]


def _mean(figures: Sequence[Mapping[str, float | None]], name: str) -> float | None:
    values = [found[name] for found in figures]
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if known and len(known) == len(values) else None


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind: what is neither a number nor text, or mixed, as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {str, bool}):
        return values
    return [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
