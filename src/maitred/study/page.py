"""Pages of studies: a comparison, a sweep and a search for capacity, each as one HTML file that needs no network.

Each has what the terminal shows, and one picture: the paired differences with their intervals, the Pareto front, or the knee of
latency over the rate. The same result gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import starmap
from pathlib import Path

from maitred.report.output_file import OutputFile
from maitred.report.page.frame import ZOOM_NOTE, page_parts, table_html
from maitred.report.page.scatter import Group, Limit, Point, Scatter, scatter_html
from maitred.report.table import format_number
from maitred.study.capacity.result import (
    KNEE_METRIC,
    CapacityResult,
    KneePoint,
    capacity_notes,
    capacity_table,
    first_line,
    option_label,
)
from maitred.study.comparison import (
    Comparison,
    Difference,
    comparison_notes,
    comparison_table,
    metric_label,
    side_label,
    side_lines,
)
from maitred.study.sweep.result import CandidateResult, SweepResult, axis_label, sweep_notes, sweep_table
from maitred.study.sweep.spec import Criteria

_WIDE = 20
"""A y axis is logarithmic if its largest value is more than this many times the smallest."""


def write_comparison_page(comparison: Comparison, path: str | Path) -> None:
    """Write a comparison. Raises ConfigError for a path that cannot be written."""
    tables = []
    for index, pairing in enumerate(comparison.pairings, 1):
        other = side_label(index)
        caption = f"A = {pairing.a}, {other} = {pairing.b}"
        tables.append(table_html(comparison_table(pairing, other), caption))
    title = f"A comparison of {len(comparison.names)} configurations"
    sides = dict.fromkeys(line for index in range(1, len(comparison.pairings) + 1) for line in side_lines(comparison, index))
    _write(path, title, "compare", (*sides, *comparison_notes(comparison)), [_differences(comparison)], tables)


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
        limits=(Limit(label="no difference", axis="x", at=0),),
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


def write_sweep_page(result: SweepResult, path: str | Path) -> None:
    """Write a sweep. Raises ConfigError for a path that cannot be written."""
    title = f"A sweep of {len(result.candidates)} candidates"
    table = table_html(sweep_table(result), "The best, and the Pareto front")
    _write(path, title, "sweep", (result.first_line, *sweep_notes(result)), [_pareto(result)], [table])


def _pareto(result: SweepResult) -> Scatter:
    x, y = result.criteria.pareto
    chosen = [] if result.best is None else [result.best]
    others = [each for each in result.candidates if each not in chosen]
    meets = "meets the constraints" if result.criteria.constraints else "candidate"
    of_kinds = {  # The best one is drawn last, over all others.
        meets: ([each for each in others if each.meets_constraints], ""),
        "misses a constraint": ([each for each in others if not each.meets_constraints], ""),
        "Pareto front": (result.pareto_front, "steps"),
        "best": (chosen, ""),
    }
    groups = tuple(
        Group(label=label, points=tuple(_candidates(candidates, x, y)), line=line)
        for label, (candidates, line) in of_kinds.items()
    )
    heights = [point.y for group in groups for point in group.points]
    return Scatter(
        title="Pareto front",
        about=f"{axis_label(y)} over {axis_label(x)}: {len(result.candidates)} candidates, {len(result.pareto_front)} of them "
        "on the Pareto front.",
        x=axis_label(x),
        y=axis_label(y),
        groups=tuple(group for group in groups if group.points),
        limits=tuple(_limits(result.criteria)),
        log_y=_is_wide(heights),
    )


def _limits(criteria: Criteria) -> Iterator[Limit]:
    """Yield a line for each constraint on one of the two metrics."""
    x, y = criteria.pareto
    for each in criteria.constraints:
        if each.metric in (x, y):
            yield Limit(label="constraint", axis="x" if each.metric == x else "y", at=each.limit)


def _candidates(candidates: Iterable[CandidateResult], x: str, y: str) -> Iterator[Point]:
    for each in candidates:
        across, up = each.figures.get(x), each.figures.get(y)
        if across is not None and up is not None:
            values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in each.values.items())
            yield Point(x=across, y=up, hollow=not each.meets_constraints, text=values)


def write_capacity_page(result: CapacityResult, path: str | Path) -> None:
    """Write a search for capacity. Raises ConfigError for a path that cannot be written."""
    title = f"How many GPUs: {result.workload}"
    table = table_html(capacity_table(result), f"At {format_number(result.today)} requests/s")
    _write(path, title, "capacity", (first_line(result), *capacity_notes(result)), [_knee(result)], [table])


def _knee(result: CapacityResult) -> Scatter:
    groups = [
        Group(label=option_label(option), points=tuple(starmap(_knee_point, option.knee)), line="straight")
        for option in result.options
        if option.knee
    ]
    limits = [Limit(label="constraint", axis="y", at=each.limit) for each in result.limits if each.metric == KNEE_METRIC]
    heights = [point.y for group in groups for point in group.points]
    return Scatter(
        title="TTFT p99 over the rate",
        about=f"TTFT p99 over the rate of {len(groups)} options. Filled points hold the constraints, hollow ones do not.",
        x="requests/s",
        y="ms",
        groups=tuple(groups),
        limits=(*limits, Limit(label="today", axis="x", at=result.today)),
        log_y=_is_wide(heights),
    )


def _knee_point(point: KneePoint, height: float) -> Point:
    return Point(x=point.rate, y=height, hollow=not point.holds, text="holds" if point.holds else "does not hold")


def _is_wide(heights: Sequence[float]) -> bool:
    return bool(heights) and min(heights) > 0 and max(heights) > _WIDE * min(heights)


def _write(
    path: str | Path,
    title: str,
    command: str,
    notes: Iterable[str],
    scatters: Iterable[Scatter],
    tables: Iterable[str],
) -> None:
    intro = "".join(f'<p class="quiet">{escape(note)}</p>\n' for note in notes if note)
    figures = "".join(map(scatter_html, scatters))
    body = [f'<section><p class="quiet">{ZOOM_NOTE}</p>\n{figures}</section>\n<section>\n', *tables, "</section>\n"]
    with OutputFile(Path(path)) as file:
        file.write("".join(page_parts(title, command, intro, body)).encode())
