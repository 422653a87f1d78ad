"""The figures of a run as a person reads them: latencies by class, then what became of the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from maitred.report.summary import Group, Slo, Spread, Summary
from maitred.sim import Outcome
from maitred.units import Micros, to_ms, to_seconds

_NOTHING = "–"
_WIDEST = 1_000

Line: TypeAlias = tuple[str, Callable[[Group], str]]

_LATENCIES: tuple[tuple[str, Callable[[Group], Spread | None]], ...] = (
    ("TTFT ms", lambda group: group.ttft),
    ("TPOT ms", lambda group: group.tpot),
    ("E2E ms", lambda group: group.e2e),
)


def print_summary(summary: Summary, console: Console) -> None:
    """Two tables within 80 columns and a line below them; plain text where the console is no terminal.

    No figure is ever cut or left out: on a console that is narrower than a table, its lines run on as they are.
    """
    groups = {cls.label: group for cls, group in summary.classes.items()} if len(summary.classes) > 1 else {}
    groups["all"] = summary.total
    for table in (_latencies(groups), _requests(summary, groups)):
        wide = console.options.update(max_width=_WIDEST)
        table.width = Measurement.get(console, wide, table).maximum
        console.print(table, no_wrap=True, crop=False, overflow="ignore")
    console.print(_closing(summary), style="dim", highlight=False)


def _latencies(groups: dict[str, Group]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("latency", style="bold")
    table.add_column("class", style="cyan")
    for name in ("mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right", min_width=9)
    for name, of in _LATENCIES:
        for row, (label, group) in enumerate(groups.items()):
            table.add_row(name if row == 0 else "", label, *_spread(of(group)))
        if len(groups) > 1:
            table.add_section()
    return table


def _spread(spread: Spread | None) -> list[str]:
    if spread is None:
        return [_NOTHING] * 4
    return [_number(to_ms(us)) for us in (spread.mean, spread.p50, spread.p90, spread.p99)]


def _requests(summary: Summary, groups: dict[str, Group]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("requests", style="bold")
    for label in groups:
        table.add_column(label, justify="right", min_width=9, header_style="cyan")
    for name, of in (("arrived", _arrived), *_outcomes(summary), *_rates(summary)):
        table.add_row(name, *map(of, groups.values()))
    return table


def _arrived(group: Group) -> str:
    return f"{group.arrived:,}"


def _outcomes(summary: Summary) -> list[Line]:
    """Completed, and whatever else happened to any request."""

    def line(kind: Outcome) -> Line:
        return f"  {kind.name.lower().replace('_', ' ')}", lambda group: f"{group.outcomes[kind]:,}"

    return [line(kind) for kind in Outcome if kind is Outcome.COMPLETED or summary.total.outcomes[kind]]


def _rates(summary: Summary) -> list[Line]:
    retries: list[Line] = [("retries", lambda group: f"{group.retries:,}")] if summary.total.retries else []
    cached: list[Line] = [("prefix hits", lambda group: f"{group.hit_rate or 0:.1%}")] if summary.total.cached_tokens else []
    lines: list[Line] = [
        *retries,
        *cached,
        ("KV preemptions", lambda group: f"{group.preemptions:,}"),
        ("completed/s", lambda group: _number(summary.per_second(group.completed))),
        ("output tokens/s", lambda group: _number(summary.per_second(group.output_tokens))),
    ]
    if summary.slo:
        lines.append(("goodput/s", lambda group: _number(summary.per_second(group.good))))
        lines.append(("within SLO", lambda group: _NOTHING if group.attainment is None else f"{group.attainment:.1%}"))
    return lines


def _closing(summary: Summary) -> str:
    simulated = f"{to_seconds(summary.duration):,.1f} s simulated"
    return f"{simulated}; SLO: {_targets(summary.slo)}" if summary.slo else simulated


def _targets(slo: Slo) -> str:
    targets: dict[str, Micros | None] = msgspec.structs.asdict(slo)
    return ", ".join(f"{name.upper()} ≤ {to_ms(us):,g} ms" for name, us in targets.items() if us is not None)


def _number(value: float | None) -> str:
    """Three digits or more: enough to compare, few enough to read."""
    if value is None:
        return _NOTHING
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"
