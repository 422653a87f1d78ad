"""Tables: the figures of a run as HTML, with tiles for the run and a table for each breakdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from itertools import groupby

import msgspec

from maitred.core.units import SECOND, to_ms, to_seconds
from maitred.report.breakdown import By
from maitred.report.formatting import NO_VALUE, format_number, format_share
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.summary import GroupSummary, InstanceSummary, Summary

_MAX_GROUPS = 50
_ALL = "all"
_TITLES = {
    By.CLASS: "By class",
    By.SLO_CLASS: "By SLO class",
    By.TENANT: "By tenant",
    By.MODEL: "By model",
    By.INSTANCE: "By instance",
}


class HeadlineTile(msgspec.Struct, frozen=True):
    """One figure with its name and a note."""

    name: str
    value: str
    note: str


class _Column(msgspec.Struct, frozen=True):
    """A column. `above` is a heading over neighbouring columns that have it in common."""

    title: str
    of: Callable[[str, GroupSummary], str]
    above: str = ""


def headline_tiles(summary: Summary) -> str:
    """Return the headline figures as a `dl` element."""
    return f'<dl class="tiles">{"".join(map(_tile, _headlines(summary)))}</dl>\n'


def _tile(tile: HeadlineTile) -> str:
    note = f'<span class="note">{escape(tile.note)}</span>'
    return f'<div class="tile"><dt>{escape(tile.name)}</dt><dd>{escape(tile.value)}{note}</dd></div>'


def _headlines(summary: Summary) -> Iterator[HeadlineTile]:
    total = summary.total
    if summary.slo:
        yield HeadlineTile(
            "Within SLO", format_share(total.attainment), f"goodput {format_number(summary.per_second(total.within_slo))}/s"
        )
    for name, spread in (("TTFT", total.ttft), ("TPOT", total.tpot), ("E2E", total.e2e)):
        if spread is not None:
            yield HeadlineTile(f"{name} p99", _time(spread.p99), f"p50 {_time(spread.p50)}")
    yield HeadlineTile("Output", format_number(summary.per_second(total.output_tokens)), "tokens/s")
    if total.completed < total.arrived:
        yield HeadlineTile("Completed", f"{total.completed:,}", f"of {total.arrived:,} requests")
    if summary.all_instances.utilisation is not None:
        yield HeadlineTile("Busy", format_share(summary.all_instances.utilisation), "of the instances' time")
    if total.longest_wait >= SECOND:
        yield HeadlineTile("Longest wait", _time(total.longest_wait), "to run for the first time")
    if total.cached_tokens:
        yield HeadlineTile("Prefix hits", format_share(total.hit_rate), "of prompt tokens")
    if total.preemptions:
        yield HeadlineTile("KV preemptions", f"{total.preemptions:,}", f"{format_share(total.waste)} of the work done twice")
    if summary.fairness is not None:
        yield HeadlineTile("Fairness", f"{summary.fairness:.3f}", "Jain's index among tenants")


def _time(us: float) -> str:
    return f"{format_number(us / SECOND)} s" if us >= SECOND else f"{format_number(to_ms(us))} ms"


def breakdown_tables(summary: Summary) -> str:
    """Return a table for each breakdown with several groups, or one table of the whole run if there is none."""
    shown = {by: groups for by, groups in summary.by.items() if len(groups) > 1}
    return "".join(_table(summary, by, groups) for by, groups in (shown or {By.CLASS: {}}).items())


def _table(summary: Summary, by: By, groups: Mapping[str, GroupSummary]) -> str:
    columns = [*_columns(summary), *(_instance_columns(summary) if by is By.INSTANCE else ())]
    rows = list(groups.items())
    left_out = len(rows) - _MAX_GROUPS
    title = _TITLES[by]
    if left_out > 0:
        rows.sort(key=lambda item: -item[1].arrived)
        title += f": the {_MAX_GROUPS} with the most requests, {left_out:,} more left out"
    body = "".join(_row(columns, label, group) for label, group in [*rows[:_MAX_GROUPS], (_ALL, summary.total)])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}"><table><caption>{escape(title)}</caption>'
        f"<thead>{_head(columns, by)}</thead><tbody>{body}</tbody></table></div>\n"
    )


def _head(columns: list[_Column], by: By) -> str:
    """Return the head of a table in two rows: the common headings of neighbours, and the headings of columns."""
    above = "".join(
        f'<th colspan="{len([*same])}" scope="colgroup">{escape(name)}</th>' if name else "<td></td>" * len([*same])
        for name, same in groupby(columns, lambda column: column.above)
    )
    below = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    return f'<tr><td></td>{above}</tr><tr><th scope="col">{escape(by.value)}</th>{below}</tr>'


def _row(columns: list[_Column], label: str, group: GroupSummary) -> str:
    cells = "".join(f"<td>{escape(column.of(label, group))}</td>" for column in columns)
    return f'<tr><th scope="row" title="{escape(label)}">{escape(label)}</th>{cells}</tr>'


def _columns(summary: Summary) -> Iterator[_Column]:
    total = summary.total
    yield _Column("requests", lambda _, group: f"{group.arrived:,}")
    if total.completed < total.arrived:
        yield _Column("completed", lambda _, group: f"{group.completed:,}")
    spreads: tuple[tuple[str, Callable[[GroupSummary], LatencyStatistics | None]], ...] = (
        ("TTFT ms", lambda group: group.ttft),
        ("TPOT ms", lambda group: group.tpot),
        ("E2E ms", lambda group: group.e2e),
    )
    for name, of in spreads:
        for figure in ("p50", "p99"):
            yield _Column(figure, _percentile(of, figure), name)
    yield _Column("mean", lambda _, group: format_number(None if group.itl_mean is None else to_ms(group.itl_mean)), "ITL ms")
    for figure in ("p50", "p99"):
        yield _Column(figure, _percentile(_itl, figure), "ITL ms")
    yield _Column("longest wait s", lambda _, group: format_number(to_seconds(group.longest_wait)))
    yield _Column("tokens/s", lambda _, group: format_number(summary.per_second(group.output_tokens)))
    if total.cached_tokens:
        yield _Column("prefix hits", lambda _, group: format_share(group.hit_rate))
    if total.preemptions:
        yield _Column("preemptions", lambda _, group: f"{group.preemptions:,}")
    if summary.slo:
        yield _Column("goodput/s", lambda _, group: format_number(summary.per_second(group.within_slo)))
        yield _Column("in SLO", lambda _, group: format_share(group.attainment))


def _instance_columns(summary: Summary) -> Iterator[_Column]:
    def engine(label: str) -> InstanceSummary:
        return summary.instances.get(label, summary.all_instances)

    yield _Column("busy", lambda label, _: format_share(engine(label).utilisation))


def _itl(group: GroupSummary) -> LatencyStatistics | None:
    return group.itl


def _percentile(of: Callable[[GroupSummary], LatencyStatistics | None], figure: str) -> Callable[[str, GroupSummary], str]:
    return lambda _, group: _shown(of(group), figure)


def _shown(spread: LatencyStatistics | None, figure: str) -> str:
    return NO_VALUE if spread is None else format_number(to_ms(getattr(spread, figure)))
