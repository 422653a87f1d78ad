"""What a sweep says: every candidate with its figures, the best of them, and those that none betters.

A sweep as a person reads it: the best candidate, and those that none betters.

The runs of a sweep as files: `results.jsonl`, and `results.parquet` where polars is installed. In the order of the grid or
the search, so that the same sweep gives the same bytes, whatever made its runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from maitred.report.formatting import format_number, format_share
from maitred.report.output_file import OutputFile
from maitred.study.metrics import find_metric
from maitred.study.sweep.criteria import Criteria, Figures
from maitred.study.sweep.points import SweepPoint

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


class CandidateResult(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that has been tried."""

    index: int
    values: dict[str, Any]
    """What makes it what it is, by dotted key."""
    problem: str
    """Why it cannot be; empty: it can."""
    figures: Figures
    """Means over its seeds, and what it costs; None where a seed has no figure."""
    meets_constraints: bool
    """Whether it meets the constraints."""
    num_seeds_met: int
    """In how many of its seeds it does."""
    num_seeds: int


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a sweep."""

    criteria: Criteria
    candidates: tuple[CandidateResult, ...]
    """In the order of the grid, or of the search; one that was proposed again only once."""
    runs: tuple[dict[str, Any], ...]
    """A row for each: the point, its values, the seed, the figures."""

    @property
    def best(self) -> CandidateResult | None:
        """By the objective, among those that meet the constraints; of equals, the better one by `pareto`, then the first."""
        order = (self.criteria.objective, *self.criteria.pareto)
        meeting = [
            each for each in self.candidates if each.meets_constraints and each.figures.get(self.criteria.objective) is not None
        ]
        return min(meeting, key=lambda each: [self.criteria.loss(name, each.figures) for name in order], default=None)

    @property
    def pareto_front(self) -> list[CandidateResult]:
        """Those that none betters in one metric of `pareto` without losing in the other; the cheapest first."""
        first, second = self.criteria.pareto
        known = [
            each for each in self.candidates if each.figures.get(first) is not None and each.figures.get(second) is not None
        ]
        loss = self.criteria.loss
        known.sort(key=lambda each: (loss(first, each.figures), loss(second, each.figures), each.index))
        front: list[CandidateResult] = []
        for each in known:
            if not front or loss(second, each.figures) < loss(second, front[-1].figures):
                front.append(each)
        return front

    def to_frame(self) -> pl.DataFrame:
        """A row per run. Raises ConfigError without polars."""
        from maitred.report.export import require_polars

        require_polars("a data frame")
        import polars as pl

        names = list(self.runs[0]) if self.runs else []
        return pl.DataFrame({name: _column([row[name] for row in self.runs]) for name in names}, strict=False)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The two metrics of `pareto` against each other; also written to `path` (png, svg or pdf), if given.

        Raises ConfigError without matplotlib, and for a path that cannot be written.
        """
        from maitred.study.sweep.plot import draw_pareto, write_figure

        figure = draw_pareto(self)
        if path is not None:
            write_figure(figure, Path(path))
        return figure

    def __str__(self) -> str:

        return sweep_text(self)


def candidate_result(point: SweepPoint, figures: Sequence[Figures], criteria: Criteria) -> CandidateResult:
    """`figures`: of its runs, seed by seed."""
    each_seed: list[Figures] = [{**found, **point.costs} for found in figures]
    means = {**{name: _mean(figures, name) for name in criteria.measured}, **point.costs}
    return CandidateResult(
        index=point.number,
        values=point.values,
        problem=point.problem,
        figures=means,
        meets_constraints=not point.problem and criteria.are_met(means),
        num_seeds_met=sum(criteria.are_met(found) for found in each_seed),
        num_seeds=len(figures),
    )


def run_rows(point: SweepPoint, figures: Sequence[Figures]) -> list[dict[str, Any]]:
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


_WIDEST = 1_000
_COLUMNS = 80
_LONGEST_VALUE = 24
_LONGEST_HEADING = 14


def sweep_text(swept: SweepResult) -> str:
    """What `print_sweep` prints, without colours."""
    out = StringIO()
    print_sweep(swept, Console(file=out, width=_COLUMNS, color_system=None))
    return out.getvalue().rstrip()


def print_sweep(swept: SweepResult, console: Console) -> None:
    """No figure is ever cut: on a console that is narrower than the table, its lines run on as they are."""
    table = _table(swept)
    wide = console.options.update(max_width=_WIDEST)
    table.width = Measurement.get(console, wide, table).maximum
    console.print(table, no_wrap=True, crop=False, overflow="ignore")
    for line in _notes(swept):
        console.print(line, style="dim", highlight=False, markup=False)


def _table(swept: SweepResult) -> Table:
    criteria, best, front = swept.criteria, swept.best, swept.pareto_front
    names = dict.fromkeys((criteria.objective, *criteria.pareto, *(each.metric for each in criteria.constraints)))
    keys = list(swept.candidates[0].values)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", style="bold")
    for key in keys:
        table.add_column(_short(key, keys), style="cyan", justify="right")
    for name in names:
        table.add_column(_heading(name), justify="right")
    if criteria.constraints:
        table.add_column("held", justify="right")
    shown = [best, *(each for each in front if each is not best)] if best else front
    for each in shown:
        held = [f"{each.num_seeds_met}/{each.num_seeds}"] if criteria.constraints else []
        mark = "best" if each is best else ""
        table.add_row(mark, *(_value(each.values[key]) for key in keys), *(_figure(name, each) for name in names), *held)
    return table


def _short(key: str, keys: list[str]) -> str:
    """The last part of a dotted key, if no other ends alike."""
    last = key.rpartition(".")[2]
    return _folded(last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key)


def _folded(name: str) -> str:
    """In two lines, if it is long."""
    breaks = [at for at, letter in enumerate(name) if letter in "_."]
    if len(name) <= _LONGEST_HEADING or not breaks:
        return name
    middle = min(breaks, key=lambda at: abs(2 * at - len(name)))
    return f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def _heading(name: str) -> str:
    group = name.rpartition(".")[0]
    label = find_metric(name, costs=True).label
    return f"{group}\n{label}" if group else label


def _figure(name: str, of: CandidateResult) -> str:
    value = of.figures[name]
    return format_share(value) if find_metric(name, costs=True).is_share else format_number(value)


def _value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _notes(swept: SweepResult) -> Iterator[str]:
    criteria, tried = swept.criteria, swept.candidates
    first, second = criteria.pareto
    could = [each for each in tried if not each.problem]
    meeting = sum(each.meets_constraints for each in could)
    yield f"{len(tried)} candidates, {len(swept.runs)} runs. Shown: the best, and whom none betters in {first} and {second}."
    if criteria.constraints:
        said = ", ".join(f"{c.metric} {'<=' if c.better == 'lower' else '>='} {c.limit:g}" for c in criteria.constraints)
        yield f"{meeting} of them meet the constraints on average over their seeds ({said}); held: in so many seeds."
        if not meeting:
            yield "None meets them: nothing is best."
    if len(could) < len(tried):
        problem = next(each.problem for each in tried if each.problem)
        yield f"{len(tried) - len(could)} cannot be; the first: {problem}"


def write_sweep(swept: SweepResult, folder: Path) -> list[Path]:
    """Returns the files. Raises ConfigError for those that cannot be written."""
    written = [folder / "results.jsonl"]
    _write(written[0], b"".join(msgspec.json.encode(row) + b"\n" for row in swept.runs))
    if find_spec("polars") is not None:
        buffer = BytesIO()
        swept.to_frame().write_parquet(buffer)
        written.append(folder / "results.parquet")
        _write(written[1], buffer.getvalue())
    return written


def _write(path: Path, content: bytes) -> None:
    with OutputFile(path) as file:
        file.write(content)
