"""Figures as text: how a figure is printed anywhere, and the tables of a run for the terminal.

The tables show latencies by class, outcomes, and a breakdown if one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

from maitred.core.units import SECOND, to_ms, to_seconds
from maitred.report.breakdown import By
from maitred.report.programs import ProgramSummary
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.slo import Slo, Targets
from maitred.report.summary import GroupSummary, Summary
from maitred.sim import Outcome

NO_VALUE = "–"
"""Printed in place of a figure that does not exist."""


def format_number(value: float | None) -> str:
    """Return the value with at least three digits."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def format_share(value: float | None) -> str:
    """Return a share of 1 in percent."""
    return NO_VALUE if value is None else f"{value:.1%}"


def format_slo(slo: Slo) -> str:
    """Return an SLO in words: the targets for all, then those of classes."""
    own = [f"{name}: {_targets(targets)}" for name, targets in slo.classes.items()]
    return "; ".join(filter(None, (_targets(slo), *own)))


def _targets(targets: Targets) -> str:
    given = {"TTFT": targets.ttft, "TPOT": targets.tpot, "E2E": targets.e2e}
    return ", ".join(f"{name} ≤ {to_ms(us):,g} ms" for name, us in given.items() if us is not None)


_WIDEST = 1_000
_MOST_BETWEEN = 3
"""Characters between two columns."""
_COLUMN_STYLE = ("header_style", "style", "justify", "overflow", "width", "min_width", "max_width", "no_wrap")
_COLUMNS = 80
_MOST_GROUPS = 20
_LONGEST_NAME = 18
_ALL = "all"

TableRow: TypeAlias = tuple[str, Callable[[GroupSummary], str]]

LATENCIES: tuple[tuple[str, Callable[[GroupSummary], LatencyStatistics | None]], ...] = (
    ("TTFT ms", lambda group: group.ttft),
    ("TPOT ms", lambda group: group.tpot),
    ("E2E ms", lambda group: group.e2e),
)


def print_summary(summary: Summary, console: Console, per: By = By.CLASS) -> None:
    """Print tables within the console and a line below them, as plain text if the console is no terminal. Classes have columns
    of their own. Another breakdown has a table with a row for each group, for the 20 groups with the most requests. No figure
    is ever cut or left out: on a narrow console a table is printed in parts."""
    several = per is By.CLASS and len(summary.by[By.CLASS]) > 1
    groups = {**summary.by[By.CLASS], _ALL: summary.total} if several else {_ALL: summary.total}
    tables = [_latencies(summary, groups), _requests(summary, groups)]
    if per is not By.CLASS:
        tables.append(_breakdown(summary, per))
    if summary.programs is not None:
        tables.append(_programs(summary.programs))
    for table in tables:
        print_table(table, console)
    console.print(_closing(summary), style="dim", highlight=False)


def print_table(table: Table, console: Console) -> None:
    """Print a table without cutting a figure. A table wider than the console (80 columns if it is no terminal) is printed
    in parts, each of which begins with the columns that have a style: the names of its rows.

    Each part has one figure at least: on a console narrower than that the lines are longer than the console.
    """
    _measure_columns(table, console)
    for part, width in _parts(table, console, console.width):
        part.width = width
        console.print(part, no_wrap=True, crop=False, overflow="ignore")


def _measure_columns(table: Table, console: Console) -> None:
    """Give each column the width that its cells need, unless that is more than the widest line. Rich would measure every cell
    three times: twice for the width of the table, and when it prints it, which takes as long as the printing itself. (Where
    padding collapses, Rich adds less to a width that is given than it needs.)"""
    options = console.options.update(max_width=_WIDEST)
    widths = []
    for column in table.columns:
        needed = max(Measurement.get(console, options, cell).maximum for cell in (column.header, *column.cells))
        widths.append(min(max(needed, column.min_width or 0), column.max_width or _WIDEST))
    if not table.collapse_padding and sum(widths) + _MOST_BETWEEN * len(widths) <= _WIDEST:
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width


def _with_width(table: Table, console: Console) -> tuple[Table, int]:
    return table, Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum


def _parts(table: Table, console: Console, widest: int) -> Iterator[tuple[Table, int]]:
    """Yield tables with the rows of `table`, each with its width, that are at most `widest`, as far as one figure beside the
    names allows."""
    whole = _with_width(table, console)
    if whole[1] <= widest:
        yield whole
        return
    names = [column for column in table.columns if column.style]
    figures = [column for column in table.columns if not column.style]
    while figures:
        for count in range(len(figures), 0, -1):
            part = _with_width(_selected(table, [*names, *figures[:count]]), console)
            if part[1] <= widest or count == 1:
                yield part
                figures = figures[count:]
                break


def _selected(table: Table, columns: Sequence[Column]) -> Table:
    """Return a table of some of the columns."""
    part = Table(box=table.box, pad_edge=table.pad_edge, collapse_padding=table.collapse_padding)
    for column in columns:
        part.add_column(column.header, column.footer, **{name: getattr(column, name) for name in _COLUMN_STYLE})
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        part.add_row(*cells, style=row.style, end_section=row.end_section)
    return part


def print_to_text(print_it: Callable[[Console], None]) -> str:
    """Return the text that `print_it` prints on a console of 80 columns, without colours."""
    out = StringIO()
    print_it(Console(file=out, width=_COLUMNS, color_system=None))
    return out.getvalue().rstrip()


def new_table(
    names: Mapping[str, str], figures: Iterable[str], *, min_width: int | None = None, header_style: str = ""
) -> Table:
    """Return a table without rows: columns of names, given with their styles, and then of figures, aligned to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, style in names.items():
        table.add_column(name, style=style)
    for figure in figures:
        table.add_column(figure, justify="right", min_width=min_width, header_style=header_style)
    return table


def _latencies(summary: Summary, groups: dict[str, GroupSummary]) -> Table:
    table = new_table({"latency": "bold", "class": "cyan"}, ("mean", "sd", "p50", "p90", "p99", "p99.9"), min_width=6)
    for name, of in LATENCIES:
        for row, (label, group) in enumerate(groups.items()):
            table.add_row(name if row == 0 else "", label, *_spread(of(group)))
        if len(groups) > 1:
            table.add_section()
    if summary.all_instances.itl is not None:
        for row, (label, group) in enumerate(groups.items()):
            mean = format_number(None if group.itl_mean is None else to_ms(group.itl_mean))
            table.add_row("ITL ms" if row == 0 else "", label, mean, *_spread(group.itl)[1:])
    return table


def _spread(spread: LatencyStatistics | None) -> list[str]:
    if spread is None:
        return [NO_VALUE] * 6
    shown = (spread.mean, spread.std, spread.p50, spread.p90, spread.p99, spread.p999)
    return [format_number(to_ms(us)) for us in shown]


def _requests(summary: Summary, groups: dict[str, GroupSummary]) -> Table:
    table = new_table({"requests": "bold"}, groups, min_width=9, header_style="cyan")
    for name, of in (("arrived", _arrived), *_outcomes(summary), *_work(summary), *_rates(summary)):
        table.add_row(name, *map(of, groups.values()))
    return table


def _programs(programs: ProgramSummary) -> Table:
    table = new_table({"programs": "bold"}, (_ALL,), min_width=9, header_style="cyan")
    makespan = programs.makespan
    lines: list[tuple[bool, str, str]] = [
        (True, "arrived", f"{programs.arrived:,}"),
        (True, "  completed", f"{programs.completed:,}"),
        (True, "steps/min", format_number(programs.steps_per_minute)),
        (makespan is not None, "makespan p50 s", format_number(makespan.p50 / SECOND if makespan else None)),
        (makespan is not None, "makespan p99 s", format_number(makespan.p99 / SECOND if makespan else None)),
        (True, "pauses", f"{programs.pauses:,}"),
        (True, "paused s", format_number(to_seconds(programs.paused))),
        (True, "requests waited s", format_number(to_seconds(programs.waited))),
        (programs.imbalance is not None, "KV imbalance", format_share(programs.imbalance)),
        (programs.imbalance is not None, "  at most", format_share(programs.max_imbalance)),
    ]
    for is_shown, name, figure in lines:
        if is_shown:
            table.add_row(name, figure)
    return table


def _arrived(group: GroupSummary) -> str:
    return f"{group.arrived:,}"


def _outcomes(summary: Summary) -> list[TableRow]:
    """Return a row for completed requests, and for every other outcome that occurred."""

    def line(kind: Outcome) -> TableRow:
        return f"  {kind.name.lower().replace('_', ' ')}", lambda group: f"{group.outcomes[kind]:,}"

    return [line(kind) for kind in Outcome if kind is Outcome.COMPLETED or summary.total.outcomes[kind]]


def _work(summary: Summary) -> list[TableRow]:
    """Return rows for what happened to requests beside their outcomes, as far as there is anything."""
    total, peak, available = summary.total, summary.peak_concurrency, summary.all_instances.availability

    def of_all(figure: Callable[[], str]) -> Callable[[GroupSummary], str]:
        return lambda group: figure() if group is total else NO_VALUE

    lines: list[tuple[bool | int | None, TableRow]] = [
        (peak, ("most in flight", of_all(lambda: f"{peak:,}"))),
        (total.retries, ("retries", lambda group: f"{group.retries:,}")),
        (total.longest_wait >= SECOND, ("longest wait s", lambda group: format_number(to_seconds(group.longest_wait)))),
        (available is not None, ("availability", of_all(lambda: format_share(available)))),
        (total.cached_tokens, ("prefix hits", lambda group: format_share(group.hit_rate or 0))),
        (not summary.is_measured, ("KV preemptions", lambda group: f"{group.preemptions:,}")),
        (total.wasted_tokens, ("wasted tokens", lambda group: f"{group.wasted_tokens:,}")),
    ]
    return [line for is_shown, line in lines if is_shown]


def _rates(summary: Summary) -> list[TableRow]:
    lines: list[TableRow] = [
        ("completed/s", lambda group: format_number(summary.per_second(group.completed))),
        ("output tokens/s", lambda group: format_number(summary.per_second(group.output_tokens))),
        ("total tokens/s", lambda group: format_number(summary.per_second(group.total_tokens))),
    ]
    if summary.slo:
        lines.append(("goodput/s", lambda group: format_number(summary.per_second(group.within_slo))))
        lines.append(("within SLO", lambda group: format_share(group.attainment)))
    return lines


def _breakdown(summary: Summary, per: By) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(per.value, style="cyan", max_width=_LONGEST_NAME)
    for name in ("requests", "TTFT p50", "TTFT p99", "TPOT p99", "E2E p99", "tokens/s", "in SLO"):
        table.add_column(name, justify="right")
    groups = list(summary.by[per].items())
    if len(groups) > _MOST_GROUPS:
        groups.sort(key=lambda item: -item[1].arrived)
    for label, group in groups[:_MOST_GROUPS]:
        name = label if len(label) <= _LONGEST_NAME else f"{label[: _LONGEST_NAME - 1]}…"
        table.add_row(name, *_breakdown_figures(summary, group))
    if len(groups) > _MOST_GROUPS:
        rest = groups[_MOST_GROUPS:]
        table.add_row(f"{len(rest):,} more", f"{sum(group.arrived for _, group in rest):,}", style="dim")
    return table


def _breakdown_figures(summary: Summary, group: GroupSummary) -> Sequence[str]:
    ttft, tpot, e2e = (_spread(each) for each in (group.ttft, group.tpot, group.e2e))
    tokens = format_number(summary.per_second(group.output_tokens))
    return _arrived(group), ttft[2], ttft[4], tpot[4], e2e[4], tokens, format_share(group.attainment)


def _closing(summary: Summary) -> str:
    parts = [f"{to_seconds(summary.duration):,.1f} s {'measured' if summary.is_measured else 'simulated'}"]
    if summary.fairness is not None:
        parts.append(f"fairness among tenants (Jain): {summary.fairness:.3f}")
    if summary.slo:
        parts.append(f"SLO: {format_slo(summary.slo)}")
    return "; ".join(parts)
