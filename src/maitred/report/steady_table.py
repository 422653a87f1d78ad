"""The steady state as text: its table for the terminal and the page, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isinf
from typing import Final

from rich.console import Console
from rich.table import Table

from maitred.core.student_t import Interval
from maitred.core.units import to_ms, to_seconds
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.steady_state import SteadyState
from maitred.report.table import NO_VALUE, format_number, format_share, new_table, print_table

_ROWS: Final = {"ttft": "TTFT ms", "tpot": "TPOT ms", "e2e": "E2E ms", "slowdown": "slowdown"}
_FIGURES: Final = ("mean", "p99")
"""What has room beside its interval; the median is in the JSON."""


def print_steady_state(steady: SteadyState, console: Console) -> None:
    """Print the estimates with their intervals and what was left out, or why there are none."""
    if not steady.problem:
        print_table(steady_table(steady), console)
    for line in steady_lines(steady):
        console.print(line, style="dim", highlight=False, markup=False)


def steady_table(steady: SteadyState) -> Table:
    """Return a row for each latency: its mean and its p99, each with its interval."""
    table = new_table({"steady state": "bold"}, (f"{figure} (95 %)" for figure in _FIGURES), min_width=9)
    for name, estimate in steady.latencies.items():
        of = _factor if name == "slowdown" else _ms
        table.add_row(_ROWS[name], *(_cell(getattr(estimate, figure), of) for figure in _FIGURES))
    if steady.attainment is not None:
        table.add_row("within SLO", _cell(steady.attainment, format_share), "")
    return table


def steady_lines(steady: SteadyState) -> Iterator[str]:
    """Yield what was left out, and by which rule, or why there is no steady state."""
    if steady.problem:
        yield f"No steady state: {steady.problem}."
        return
    left_out = f"without the first {steady.left_out:,} requests ({format_number(to_seconds(steady.warmup))} s)"
    whole = f"{left_out}, by the rule {steady.rule}" if steady.left_out else f"of all requests: {_nothing(steady.rule)}"
    if steady.cut:
        whole += f"; without the last {steady.cut:,}, of which the end of the run may have cut off some"
    yield f"Steady state: {whole}; intervals of 95 % by batch means."


def _nothing(rule: str) -> str:
    return "MSER-5 leaves out none" if rule == "MSER-5" else "none is left out"


def slowdown_lines(slowdown: LatencyStatistics | None) -> list[str]:
    """Return the slowdown in a sentence, if it is known."""
    if slowdown is None:
        return []
    p50, p99 = format_number(slowdown.p50), format_number(slowdown.p99)
    alone = "an idle instance, whose cache is empty" if slowdown.p50 < 1 else "an idle instance"
    return [f"Slowdown (E2E by that on {alone}): mean {format_number(slowdown.mean)}, p50 {p50}, p99 {p99}."]


def _ms(value: float) -> str:
    return format_number(to_ms(value))


def _factor(value: float) -> str:
    return format_number(value)


def _cell(found: Interval | None, of: Callable[[float], str]) -> str:
    if found is None:
        return NO_VALUE
    return f"{of(found.value)} ({of(max(found.low, 0.0))} to {'?' if isinf(found.high) else of(found.high)})"
