"""The result of a sweep: every candidate with its figures, the best one, the Pareto front, plot, table and files.

The files are `results.jsonl`, and `results.parquet` where polars is installed. They have a row per run in the order of the grid
or the search, so the same sweep gives the same bytes, however its runs were made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from maitred.report.figure import draw_scatter
from maitred.report.output_file import OutputFile
from maitred.report.panels import Group, LimitLine, Point, Scatter, spans_decades
from maitred.study.metrics import COMPLETED_SHARE, Figures, find_metric, mean_figures, metric_heading
from maitred.study.presentation import Presentation, ShownTable, StudyResult
from maitred.study.sweep.points import SweepPoint
from maitred.study.sweep.spec import Criteria

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

_LONGEST_VALUE = 24
_LONGEST_HEADING = 10
_FEWER = 0.01
"""A share of requests by which one candidate answers fewer than another, and its latencies are of other requests."""


class CandidateResult(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its figures."""

    index: int
    values: dict[str, Any]
    """The values that define it, by dotted key."""
    problem: str
    """Why it cannot be simulated; empty if it can."""
    figures: Figures
    """Means over its seeds, and its costs, or None where a seed has no figure."""
    meets_constraints: bool
    """Whether the means meet the constraints."""
    num_seeds_met: int
    """Number of its seeds that meet the constraints by themselves."""
    num_seeds: int


class SweepResult(StudyResult, frozen=True, kw_only=True):
    """The result of a sweep."""

    criteria: Criteria
    candidates: tuple[CandidateResult, ...]
    """In the order of the grid or the search, without repeated proposals."""
    runs: tuple[dict[str, Any], ...]
    """A row per run: the point, its values, the seed, the figures."""
    simulated: str = ""
    """What was simulated in the runs of the best candidate, or else of the first that has any; empty if none has."""

    @property
    def first_line(self) -> str:
        """What was simulated, in words."""
        which = "Best" if self.best is not None else "The first candidate"
        return f"{which}: {self.simulated}." if self.simulated else "No candidate can be simulated."

    @property
    def best_or_first(self) -> int | None:
        """The number of the best candidate, or else of the first that can be simulated."""
        return next((each.index for each in (self.best, *self.candidates) if each is not None and not each.problem), None)

    @property
    def best(self) -> CandidateResult | None:
        """The best candidate that meets the constraints, by the objective. `pareto`, then the order, decides ties."""
        order = (self.criteria.objective, *self.criteria.pareto)
        meeting = [
            each for each in self.candidates if each.meets_constraints and each.figures.get(self.criteria.objective) is not None
        ]
        return min(meeting, key=lambda each: [self.criteria.loss(name, each.figures) for name in order], default=None)

    @property
    def pareto_front(self) -> list[CandidateResult]:
        """Candidates than which no other is better in one metric of `pareto` and not worse in the other, by the first."""
        first, second = self.criteria.pareto
        known = [
            each for each in self.candidates if each.figures.get(first) is not None and each.figures.get(second) is not None
        ]
        loss = self.criteria.loss
        # In the order of the first metric, a candidate is on the front if it is better in the second than all before it.
        known.sort(key=lambda each: (loss(first, each.figures), loss(second, each.figures), each.index))
        front: list[CandidateResult] = []
        for each in known:
            if not front or loss(second, each.figures) < loss(second, front[-1].figures):
                front.append(each)
        return front

    def to_frame(self) -> pl.DataFrame:
        """Return a row per run. Raises ConfigError without polars."""
        from maitred.report.export import require_polars

        require_polars("a data frame")
        import polars as pl

        names = list(self.runs[0]) if self.runs else []
        return pl.DataFrame({name: _column([row[name] for row in self.runs]) for name in names}, strict=False)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the two metrics of `pareto` against each other, and write the figure to `path` (png, svg or pdf) if it is given.
        Raises ConfigError without matplotlib, and for a path that cannot be written."""
        return draw_scatter(pareto_scatter(self), path)

    def presentation(self) -> Presentation:
        """Return a table of the best candidate and the Pareto front, and the front as a picture."""
        return Presentation(
            title=f"A sweep of {len(self.candidates)} candidates",
            command="sweep",
            tables=(ShownTable(sweep_table(self), "The best, and the Pareto front", (self.first_line,)),),
            notes=tuple(sweep_notes(self)),
            scatter=pareto_scatter(self),
        )


def candidate_result(point: SweepPoint, figures: Sequence[Figures], criteria: Criteria) -> CandidateResult:
    """Return the result of a candidate, given the figures of its runs by seed."""
    each_seed: list[Figures] = [{**of_seed, **point.costs} for of_seed in figures]
    means = {**mean_figures(figures, criteria.measured), **point.costs}
    return CandidateResult(
        index=point.number,
        values=point.values,
        problem=point.problem,
        figures=means,
        meets_constraints=not point.problem and criteria.are_met(means),
        num_seeds_met=sum(criteria.are_met(of_seed) for of_seed in each_seed),
        num_seeds=len(figures),
    )


def run_rows(point: SweepPoint, figures: Sequence[Figures]) -> list[dict[str, Any]]:
    """Return the rows of the runs of a point."""
    return [
        {
            "point": point.number,
            **point.values,
            "seed": run.seed,
            "latency_scale": run.latency_scale,
            **point.costs,
            **of_run,
        }
        for run, of_run in zip(point.runs, figures, strict=True)
    ]


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: anything but numbers and text, and mixed types, as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {str, bool}):
        return values
    return [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]


def sweep_table(result: SweepResult) -> Table:
    """Return a row for the best candidate, and for each of the Pareto front."""
    criteria, best, front = result.criteria, result.best, result.pareto_front
    names = [*dict.fromkeys((criteria.objective, *criteria.pareto, *(each.metric for each in criteria.constraints)))]
    if _answers_fewer(result) and COMPLETED_SHARE not in names:
        names.append(COMPLETED_SHARE)
    keys = list(result.candidates[0].values)
    table = _empty_table(keys, names, has_constraints=bool(criteria.constraints))
    shown = [best, *(each for each in front if each is not best)] if best else front
    for each in shown:
        held = [f"{each.num_seeds_met}/{each.num_seeds}"] if criteria.constraints else []
        mark = "best" if each is best else ""
        figures = (find_metric(name, costs=True).format(each.figures[name]) for name in names)
        table.add_row(mark, *(_shortened(str(each.values[key])) for key in keys), *figures, *held)
    return table


def _empty_table(keys: list[str], names: Sequence[str], *, has_constraints: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", style="bold")
    for key in keys:
        table.add_column(_short(key, keys), style="cyan", justify="right")
    for name in (*map(metric_heading, names), *(["held"] if has_constraints else [])):
        table.add_column(name, justify="right")
    return table


def _short(key: str, keys: list[str]) -> str:
    """Return the last part of a dotted key, if no other key ends in it."""
    last = key.rpartition(".")[2]
    return _folded(last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key)


def _folded(name: str) -> str:
    """Return a long name in several lines, broken after `_` and `.`."""
    lines = [""]
    for part in re.findall(r"[^_.]+[_.]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > _LONGEST_HEADING:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def sweep_notes(result: SweepResult) -> Iterator[str]:
    """Yield what was tried, and how many candidates meet the constraints."""
    criteria, candidates = result.criteria, result.candidates
    first, second = criteria.pareto
    possible = [each for each in candidates if not each.problem]
    runs = f"{len(candidates)} candidates, {len(result.runs)} runs."
    yield f"{runs} Shown: the best, and the Pareto front of {first} and {second}."
    if criteria.constraints:
        yield from _constraint_notes(criteria, sum(each.meets_constraints for each in possible))
    named = dict.fromkeys((criteria.objective, *criteria.pareto, *(each.metric for each in criteria.constraints)))
    lacking = [name for name in named if possible and all(each.figures[name] is None for each in possible)]
    if lacking:
        yield f"No run has a figure for {', '.join(lacking)}: no request got so far. maitred simulate says why."
    if _answers_fewer(result):
        yield (
            "Others answer more requests than the best one, whose latencies are of those alone that it answers: "
            f"{COMPLETED_SHARE} >= 0.99 as a constraint leaves it out."
        )
    if len(possible) < len(candidates):
        problem = next(each.problem for each in candidates if each.problem)
        yield f"{len(candidates) - len(possible)} cannot be simulated; the first: {problem}"


def _answers_fewer(result: SweepResult) -> bool:
    """Return whether another candidate answers more requests than the best one."""
    shares = [each.figures[COMPLETED_SHARE] or 0.0 for each in result.candidates if not each.problem]
    return result.best is not None and (result.best.figures[COMPLETED_SHARE] or 0.0) < max(shares) - _FEWER


def _constraint_notes(criteria: Criteria, meeting: int) -> Iterator[str]:
    limits = ", ".join(f"{c.metric} {'<=' if c.better == 'lower' else '>='} {c.limit:g}" for c in criteria.constraints)
    meets = f"{meeting} of them meet the constraints on average over their seeds ({limits})"
    yield f"{meets}; held: the number of seeds that meet them."
    if not meeting:
        yield "None meets them, so there is no best one."


def write_sweep(result: SweepResult, folder: Path) -> list[Path]:
    """Write the files, and return them. Raises ConfigError for a file that cannot be written."""
    written = [folder / "results.jsonl"]
    _write(written[0], b"".join(msgspec.json.encode(row) + b"\n" for row in result.runs))
    if find_spec("polars") is not None:
        buffer = BytesIO()
        result.to_frame().write_parquet(buffer)
        written.append(folder / "results.parquet")
        _write(written[1], buffer.getvalue())
    return written


def _write(path: Path, content: bytes) -> None:
    with OutputFile(path) as file:
        file.write(content)


def pareto_scatter(result: SweepResult) -> Scatter:
    """Return the candidates by the two metrics of `pareto`: those that meet the constraints, those that miss one, the front and
    the best one, which is drawn last, over all others."""
    x, y = result.criteria.pareto
    chosen = [] if result.best is None else [result.best]
    others = [each for each in result.candidates if each not in chosen]
    meets = "meets the constraints" if result.criteria.constraints else "candidate"
    of_kinds = {
        meets: ([each for each in others if each.meets_constraints], ""),
        "misses a constraint": ([each for each in others if not each.meets_constraints], ""),
        "Pareto front": (result.pareto_front, "steps"),
        "best": (chosen, ""),
    }
    groups = tuple(
        Group(label=label, points=tuple(_points(candidates, x, y)), line=line) for label, (candidates, line) in of_kinds.items()
    )
    return Scatter(
        title="Pareto front",
        about=f"{axis_label(y)} over {axis_label(x)}: {len(result.candidates)} candidates, {len(result.pareto_front)} of them "
        "on the Pareto front.",
        x=axis_label(x),
        y=axis_label(y),
        groups=tuple(group for group in groups if group.points),
        limits=tuple(_limits(result.criteria)),
        log_y=spans_decades([point.y for group in groups for point in group.points]),
    )


def _limits(criteria: Criteria) -> Iterator[LimitLine]:
    """Yield a line for each constraint on one of the two metrics."""
    x, y = criteria.pareto
    for each in criteria.constraints:
        if each.metric in (x, y):
            yield LimitLine(label="constraint", axis="x" if each.metric == x else "y", at=each.limit)


def _points(candidates: Iterable[CandidateResult], x: str, y: str) -> Iterator[Point]:
    """Yield the candidates that have both metrics."""
    for each in candidates:
        across, up = each.figures.get(x), each.figures.get(y)
        if across is not None and up is not None:
            values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in each.values.items())
            yield Point(x=across, y=up, hollow=not each.meets_constraints, text=values)


def axis_label(name: str) -> str:
    """Return a metric in words, with its class."""
    group = name.rpartition(".")[0]
    label = find_metric(name, costs=True).label
    return f"{label} ({group})" if group else label
