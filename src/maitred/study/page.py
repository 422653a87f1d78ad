"""Pages of studies: a comparison, a sweep and a search for capacity, each as one HTML file that needs no network.

Each has what the terminal shows, and one picture: the paired differences with their intervals, the Pareto front, or the knee of
latency over the rate. The same result gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from maitred.report.output_file import OutputFile
from maitred.report.page.chart import scatter_html
from maitred.report.page.frame import ZOOM_NOTE, page_parts, table_html
from maitred.report.scatter import Group, Limit, Point, Scatter
from maitred.report.table import format_number
from maitred.study.capacity.result import (
    CapacityResult,
    capacity_notes,
    capacity_table,
    first_line,
    knee_scatter,
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
from maitred.study.sweep.result import SweepResult, pareto_scatter, sweep_notes, sweep_table


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
    _write(path, title, "sweep", (result.first_line, *sweep_notes(result)), [pareto_scatter(result)], [table])


def write_capacity_page(result: CapacityResult, path: str | Path) -> None:
    """Write a search for capacity. Raises ConfigError for a path that cannot be written."""
    title = f"How many GPUs: {result.workload}"
    table = table_html(capacity_table(result), f"At {format_number(result.today)} requests/s")
    _write(path, title, "capacity", (first_line(result), *capacity_notes(result)), [knee_scatter(result)], [table])


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
