"""The figures of a run as HTML: tiles for the run, a table for each breakdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from itertools import groupby

import msgspec

from maitred.report.breakdown import By
from maitred.report.spread import Spread
from maitred.report.summary import Engine, Group, Summary
from maitred.report.wording import NOTHING, number, share
from maitred.units import SECOND, to_ms, to_seconds

_MOST_GROUPS = 50
_ALL = "all"
_TITLES = {
    By.CLASS: "By class",
    By.SLO_CLASS: "By SLO class",
    By.TENANT: "By tenant",
    By.MODEL: "By model",
    By.INSTANCE: "By instance",
}


class Tile(msgspec.Struct, frozen=True):
    """One figure."""

    name: str
    value: str
    note: str


class _Column(msgspec.Struct, frozen=True):
    """`above` stands over neighbours that have it in common."""

    title: str
    of: Callable[[str, Group], str]
    above: str = ""


def tiles(summary: Summary) -> str:
    """A `dl`."""
    return f'<dl class="tiles">{"".join(map(_tile, _headlines(summary)))}</dl>\n'


def _tile(tile: Tile) -> str:
    note = f'<span class="note">{escape(tile.note)}</span>'
    return f'<div class="tile"><dt>{escape(tile.name)}</dt><dd>{escape(tile.value)}{note}</dd></div>'


def _headlines(summary: Summary) -> Iterator[Tile]:
    total = summary.total
    if summary.slo:
        yield Tile("Within SLO", share(total.attainment), f"goodput {number(summary.per_second(total.good))}/s")
    for name, spread in (("TTFT", total.ttft), ("TPOT", total.tpot), ("E2E", total.e2e)):
        if spread is not None:
            yield Tile(f"{name} p99", _time(spread.p99), f"p50 {_time(spread.p50)}")
    yield Tile("Output", number(summary.per_second(total.output_tokens)), "tokens/s")
    if total.completed < total.arrived:
        yield Tile("Completed", f"{total.completed:,}", f"of {total.arrived:,} requests")
    if summary.engine.utilisation is not None:
        yield Tile("Busy", share(summary.engine.utilisation), "of the instances' time")
    if total.starvation >= SECOND:
        yield Tile("Longest wait", _time(total.starvation), "to run for the first time")
    if total.cached_tokens:
        yield Tile("Prefix hits", share(total.hit_rate), "of prompt tokens")
    if total.preemptions:
        yield Tile("KV preemptions", f"{total.preemptions:,}", f"{share(total.waste)} of the work done twice")
    if summary.fairness is not None:
        yield Tile("Fairness", f"{summary.fairness:.3f}", "Jain's index among tenants")


def _time(us: float) -> str:
    return f"{number(us / SECOND)} s" if us >= SECOND else f"{number(to_ms(us))} ms"


def breakdowns(summary: Summary) -> str:
    """A table for each that has several groups; without any, one of the whole."""
    shown = {by: groups for by, groups in summary.by.items() if len(groups) > 1}
    return "".join(_table(summary, by, groups) for by, groups in (shown or {By.CLASS: {}}).items())


def _table(summary: Summary, by: By, groups: Mapping[str, Group]) -> str:
    columns = [*_columns(summary), *(_of_engines(summary) if by is By.INSTANCE else ())]
    rows = list(groups.items())
    left_out = len(rows) - _MOST_GROUPS
    title = _TITLES[by]
    if left_out > 0:
        rows.sort(key=lambda item: -item[1].arrived)
        title += f": the {_MOST_GROUPS} with the most requests, {left_out:,} more left out"
    body = "".join(_row(columns, label, group) for label, group in [*rows[:_MOST_GROUPS], (_ALL, summary.total)])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}"><table><caption>{escape(title)}</caption>'
        f"<thead>{_head(columns, by)}</thead><tbody>{body}</tbody></table></div>\n"
    )


def _head(columns: list[_Column], by: By) -> str:
    """Two lines: what neighbours have in common, and the rest."""
    above = "".join(
        f'<th colspan="{len([*same])}" scope="colgroup">{escape(name)}</th>' if name else "<td></td>" * len([*same])
        for name, same in groupby(columns, lambda column: column.above)
    )
    below = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    return f'<tr><td></td>{above}</tr><tr><th scope="col">{escape(by.value)}</th>{below}</tr>'


def _row(columns: list[_Column], label: str, group: Group) -> str:
    cells = "".join(f"<td>{escape(column.of(label, group))}</td>" for column in columns)
    return f'<tr><th scope="row" title="{escape(label)}">{escape(label)}</th>{cells}</tr>'


def _columns(summary: Summary) -> Iterator[_Column]:
    total = summary.total
    yield _Column("requests", lambda _, group: f"{group.arrived:,}")
    if total.completed < total.arrived:
        yield _Column("completed", lambda _, group: f"{group.completed:,}")
    spreads: tuple[tuple[str, Callable[[Group], Spread | None]], ...] = (
        ("TTFT ms", lambda group: group.ttft),
        ("TPOT ms", lambda group: group.tpot),
        ("E2E ms", lambda group: group.e2e),
    )
    for name, of in spreads:
        for figure in ("p50", "p99"):
            yield _Column(figure, _percentile(of, figure), name)
    yield _Column("mean", lambda _, group: number(None if group.gap_mean is None else to_ms(group.gap_mean)), "ITL ms")
    for figure in ("p50", "p99"):
        yield _Column(figure, _percentile(_itl, figure), "ITL ms")
    yield _Column("longest wait s", lambda _, group: number(to_seconds(group.starvation)))
    yield _Column("tokens/s", lambda _, group: number(summary.per_second(group.output_tokens)))
    if total.cached_tokens:
        yield _Column("prefix hits", lambda _, group: share(group.hit_rate))
    if total.preemptions:
        yield _Column("preemptions", lambda _, group: f"{group.preemptions:,}")
    if summary.slo:
        yield _Column("goodput/s", lambda _, group: number(summary.per_second(group.good)))
        yield _Column("in SLO", lambda _, group: share(group.attainment))


def _of_engines(summary: Summary) -> Iterator[_Column]:
    def engine(label: str) -> Engine:
        return summary.engines.get(label, summary.engine)

    yield _Column("busy", lambda label, _: share(engine(label).utilisation))


def _itl(group: Group) -> Spread | None:
    return group.itl


def _percentile(of: Callable[[Group], Spread | None], figure: str) -> Callable[[str, Group], str]:
    return lambda _, group: _shown(of(group), figure)


def _shown(spread: Spread | None, figure: str) -> str:
    return NOTHING if spread is None else number(to_ms(getattr(spread, figure)))
