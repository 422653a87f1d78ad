"""The result of `maitred capacity`: each option with its size and its highest rate, and the table; `knee` has the picture."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.table import Table

from maitred.report import Slo
from maitred.report.figure import draw_scatter
from maitred.report.panels import Scatter
from maitred.report.table import NO_VALUE, format_number, new_table
from maitred.study.capacity.knee import bindings, knee_scatter
from maitred.study.capacity.points import CapacityOption
from maitred.study.metrics import Constraint, find_metric, metric_heading
from maitred.study.presentation import Presentation, ShownTable, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST_STRETCH: Final = 4.0
_LONG_ANSWER: Final = 0.5
"""Mean time of a request, as a share of the time in which they arrive, above which a run is too short: instances fill up for as
long as the first answers take, and only after that the queue shows."""
_SAFE: Final = 0.95
"""The probability from which an option is safe to buy."""


class CapacityResult(StudyResult, frozen=True, kw_only=True):
    """What clusters of several kinds need and take."""

    workload: str
    slo: str
    """The SLO in words."""
    targets: Slo = msgspec.field(default_factory=lambda: Slo(classes={}))
    """The SLO."""
    constraints: tuple[str, ...]
    limits: tuple[Constraint, ...]
    """The constraints as they are compared."""
    seeds: tuple[int, ...]
    tolerance: float
    today: float
    """Today's rate, in requests per second."""
    has_prices: bool
    runs: int
    options: tuple[CapacityOption, ...]

    @property
    def best(self) -> CapacityOption | None:
        """The cheapest option that holds today's rate, or the one with the fewest GPUs if there are no prices."""
        able = [each for each in self.options if not each.problem and (each.headroom or 0) >= 1]
        return min(able, key=lambda each: (each.cost or 0.0, each.gpus or 0, -(each.headroom or 0)), default=None)

    def _knee(self) -> Scatter:
        return knee_scatter(self.options, self.best, bindings(self.limits, self.targets), self.today)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the figure that binds against the rate, a curve for each option at its size, and write it to `path` if it is
        given.

        Raises ConfigError without matplotlib, and for a path that cannot be written.
        """
        return draw_scatter(self._knee(), path)

    def presentation(self) -> Presentation:
        """Return a row for each option, the best one first, and the knee of each as a picture."""
        best = "" if self.best is None else f"Best: {self.best.simulated}."
        return Presentation(
            title=f"How many GPUs: {self.workload}",
            command="capacity",
            tables=(ShownTable(capacity_table(self), f"At {format_number(self.today)} requests/s", (best,)),),
            notes=tuple(capacity_notes(self)),
            scatter=self._knee(),
        )


def capacity_table(result: CapacityResult) -> Table:
    """Return a row for each option, the best one first."""
    names = [*dict.fromkeys(each.metric for each in result.limits)]
    figures = [
        "TP",
        "instances",
        "GPUs",
        "highest\nrate/s",
        "95 %",
        "head-\nroom",
        "slower\nby",
        "P(holds)",
        *map(_heading, names),
    ]
    figures += ["cost/h", "cost/1M"] if result.has_prices else []
    table = new_table({"": "bold", "GPU": "cyan"}, figures)
    options = sorted(
        result.options, key=lambda each: (bool(each.problem), each is not result.best, each.cost or 0, each.gpus or 0)
    )
    for option in options:
        table.add_row(*_row(result, option, names))
    return table


def _row(result: CapacityResult, option: CapacityOption, names: list[str]) -> Iterator[str]:
    yield "best" if option is result.best else ""
    yield option.hardware or "any"
    yield "" if option.tensor_parallel_size is None else str(option.tensor_parallel_size)
    if option.problem:
        yield from [NO_VALUE] * (7 + len(names) + 2 * result.has_prices)
        return
    yield _size(option)
    yield f"{option.gpus:,}"
    yield format_number(option.highest_rate)
    yield (
        NO_VALUE if option.rates is None else " to ".join("?" if isinf(rate) else format_number(rate) for rate in option.rates)
    )
    yield NO_VALUE if option.headroom is None else f"{option.headroom:.2f}"
    yield _stretch(option.stretch)
    yield NO_VALUE if option.probability is None else f"{option.probability:.2f}"
    for name in names:
        yield _today(option, name)
    if result.has_prices:
        yield format_number(option.cost)
        yield NO_VALUE if option.cost_per_million is None else f"{option.cost_per_million:.3g}"


def _size(option: CapacityOption) -> str:
    low, high = option.sizes or (option.instances, option.instances)
    size = option.shape or f"{option.instances:,}"
    return size if low == high else f"{size} ({low} to {high})"


def _stretch(stretch: float | None) -> str:
    if stretch is None:
        return NO_VALUE
    return f"× {stretch:.2f}" if stretch < _LARGEST_STRETCH / 1.1 else f"> × {_LARGEST_STRETCH / 1.1:.1f}"


def _today(option: CapacityOption, name: str) -> str:
    """Return the figure at today's rate, with its half width if several seeds give one."""
    metric = find_metric(name)
    if option.today is None:
        return NO_VALUE
    shown, interval = metric.format(option.today.figures[name]), option.today.intervals.get(name)
    return shown if interval is None else f"{shown} ± {metric.format(interval.half_width)}"


def _heading(name: str) -> str:
    heading = metric_heading(name)
    return heading if "\n" in heading else heading.replace(" ", "\n", 1)


def capacity_notes(result: CapacityResult) -> Iterator[str]:
    """Yield what was asked, what the columns are, and why some options have no answer."""
    counts = sorted({option.seeds for option in result.options if option.seeds})
    seeds = " to ".join(f"{count:,}" for count in counts[:1] + counts[1:][-1:])
    how_often = f"{seeds} {'seed' if seeds == '1' else 'seeds'}, " if seeds else ""  # no option holds: nothing was repeated
    what = f"{how_often}the same workload for all options"
    yield f"Today: {result.workload}, {format_number(result.today)} requests/s; {what}."
    yield f"To hold, on average over the seeds: {', '.join(result.constraints)}. SLO: {result.slo}."
    yield (
        f"Figures are those at today's rate. Rates are within {result.tolerance:.1%}; 95 %: those that the runs do not rule "
        f"out{'' if counts != [1] else ' (one seed rules out none)'}. Headroom is the highest rate by today's. Slower by: the "
        f"factor on all step times up to which today's rate holds. {result.runs:,} runs."
    )
    yield from _probability_notes(result)
    if result.has_prices:
        yield "cost/1M: of a million output tokens at today's rate."
    if result.best is None:
        yield "No option holds today's rate."
    elif (result.best.probability or 1.0) < _SAFE:
        yield f"The best option holds with a probability of {result.best.probability:.2f} only: {_safest(result)}."
    yield from _length_notes(result)
    for option in result.options:
        if option.problem:
            yield f"{_name(option)}: {option.problem}."


def _name(option: CapacityOption) -> str:
    size = "" if option.tensor_parallel_size is None else f", TP {option.tensor_parallel_size}"
    return f"{option.hardware or 'instances'}{size}"


def _length_notes(result: CapacityResult) -> Iterator[str]:
    """Yield which options were tried with runs that are too short to show what lasts."""
    shares = {_name(each): each.answer_share for each in result.options}
    short = {name: share for name, share in shares.items() if share is not None and share > _LONG_ANSWER}
    if short:
        yield (
            f"The runs are too short to show what lasts ({'; '.join(short)}): a request takes "
            f"{max(short.values()):.0%} of the time in which they arrive. "
            f"{ceil(max(short.values()) / _LONG_ANSWER)} times as many requests would show it."
        )


def _safest(result: CapacityResult) -> str:
    """Return which option is the cheapest of those that hold with a high probability."""
    safe = [each for each in result.options if not each.problem and (each.probability or 0.0) >= _SAFE]
    if not safe:
        return f"none of them holds with {_SAFE:.2f} or more"
    found = min(safe, key=lambda each: (each.cost or 0.0, each.gpus or 0))
    which = found.shape if found.tensor_parallel_size is None else f"{found.shape} × {_name(found)}"
    return f"of those with {_SAFE:.2f} or more the {'cheapest' if result.has_prices else 'smallest'} is {which}"


def _probability_notes(result: CapacityResult) -> Iterator[str]:
    """Yield what P(holds) includes."""
    shown = [option for option in result.options if option.probability is not None]
    known = {option.hardware or "instances": option.model_error for option in shown if option.model_error}
    unknown = sorted({option.hardware or "instances" for option in shown if option.model_error is None})
    if known:
        errors = ", ".join(f"{name} {error:.1%}" for name, error in known.items())
        yield f"P(holds) includes the error of the latency model (standard deviation: {errors}) and the chance of the seeds."
    if unknown:
        yield (
            f"The error of the latency model is not known ({', '.join(unknown)}): P(holds) is the chance of the seeds alone "
            "(--latency-error states one)."
        )
