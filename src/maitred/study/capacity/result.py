"""The result of `maitred capacity`: each option with its size and its highest rate, the table, and the plot of the knee."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.table import Table

from maitred.report.figure import draw_scatter
from maitred.report.panels import Group, Limit, Point, Scatter, spans_decades
from maitred.report.table import NO_VALUE, format_number, new_table
from maitred.study.metrics import Constraint, Figures, find_metric, metric_heading
from maitred.study.presentation import Presentation, ShownTable, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KNEE_METRIC: Final = "ttft_p99_ms"
"""What the plot shows over the rate."""


class KneePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A size at a rate: means over the seeds."""

    instances: int
    rate: float
    """Requests per second."""
    holds: bool
    figures: Figures


class CapacityOption(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU with a tensor parallelism."""

    hardware: str
    """Empty without a model."""
    tensor_parallel_size: int
    instances: int | None
    """The smallest number that holds today's rate, or the given one."""
    gpus: int | None
    cost: float | None
    """Per hour, if prices are given."""
    highest_rate: float | None
    """The highest rate that these instances hold, in requests per second."""
    headroom: float | None
    """The highest rate, divided by that of today."""
    today: KneePoint | None
    """What was measured of that many instances at today's rate."""
    simulated: str
    """What was simulated, as a run says it; empty if nothing was."""
    problem: str
    """Why there is no answer, or empty."""
    points: tuple[KneePoint, ...]
    """Everything that was tried, by size and rate."""

    @property
    def knee(self) -> list[tuple[KneePoint, float]]:
        """The points at the size of this option, by rate, each with its p99 of TTFT; those without one are left out."""
        points = sorted((each for each in self.points if each.instances == self.instances), key=lambda each: each.rate)
        return [(each, height) for each in points if (height := each.figures[KNEE_METRIC]) is not None]


class CapacityResult(StudyResult, frozen=True, kw_only=True):
    """What clusters of several kinds need and take."""

    workload: str
    slo: str
    """The SLO in words."""
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

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the p99 of TTFT against the rate, a curve for each option at its size, and write it to `path` if it is given.

        Raises ConfigError without matplotlib, and for a path that cannot be written.
        """
        return draw_scatter(knee_scatter(self), path)

    def presentation(self) -> Presentation:
        """Return a row for each option, the best one first, and the knee of each as a picture."""
        best = "" if self.best is None else f"Best: {self.best.simulated}."
        return Presentation(
            title=f"How many GPUs: {self.workload}",
            command="capacity",
            tables=(ShownTable(capacity_table(self), f"At {format_number(self.today)} requests/s", (best,)),),
            notes=tuple(capacity_notes(self)),
            scatter=knee_scatter(self),
        )


def capacity_table(result: CapacityResult) -> Table:
    """Return a row for each option, the best one first."""
    names = [*dict.fromkeys(each.metric for each in result.limits)]
    figures = ("TP", "instances", "GPUs", "highest\nrate", "headroom", *map(_heading, names))
    table = new_table({"": "bold", "GPU": "cyan"}, (*figures, "cost/h") if result.has_prices else figures)
    options = sorted(
        result.options, key=lambda each: (bool(each.problem), each is not result.best, each.cost or 0, each.gpus or 0)
    )
    for option in options:
        table.add_row(*_row(result, option, names))
    return table


def _row(result: CapacityResult, option: CapacityOption, names: list[str]) -> Iterator[str]:
    yield "best" if option is result.best else ""
    yield option.hardware or "any"
    yield str(option.tensor_parallel_size)
    if option.problem:
        yield from [NO_VALUE] * (4 + len(names) + result.has_prices)
        return
    yield f"{option.instances:,}"
    yield f"{option.gpus:,}"
    yield f"{format_number(option.highest_rate)}/s"
    yield NO_VALUE if option.headroom is None else f"{option.headroom:.2f}"
    for name in names:
        yield find_metric(name).format(option.today.figures[name] if option.today else None)
    if result.has_prices:
        yield format_number(option.cost)


def _heading(name: str) -> str:
    heading = metric_heading(name)
    return heading if "\n" in heading else heading.replace(" ", "\n", 1)


def capacity_notes(result: CapacityResult) -> Iterator[str]:
    """Yield what was asked, and why some options have no answer."""
    seeds = "1 seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    yield f"Today: {result.workload}, {format_number(result.today)} requests/s; {seeds}, the same workload for all options."
    yield f"To hold, on average over the seeds: {', '.join(result.constraints)}. SLO: {result.slo}."
    yield (
        f"Figures are those at today's rate. Rates are within {result.tolerance:.1%}; headroom is the highest rate by today's. "
        f"{result.runs:,} runs."
    )
    if result.best is None:
        yield "No option holds today's rate."
    for option in result.options:
        if option.problem:
            yield f"{option.hardware or 'instances'}, TP {option.tensor_parallel_size}: {option.problem}."


def option_label(option: CapacityOption) -> str:
    """Return the name of an option at its size."""
    return f"{option.instances} × {option.hardware or 'instance'}, TP {option.tensor_parallel_size}"


def knee_scatter(result: CapacityResult) -> Scatter:
    """Return the p99 of TTFT over the rate of each option at the size that it needs today. Filled points hold."""
    groups = [
        Group(label=option_label(option), points=tuple(_knee_points(option)), line="straight")
        for option in result.options
        if option.knee
    ]
    limits = [Limit(label="constraint", axis="y", at=each.limit) for each in result.limits if each.metric == KNEE_METRIC]
    return Scatter(
        title="TTFT p99 over the rate",
        about=f"TTFT p99 over the rate of {len(groups)} options. Filled points hold the constraints, hollow ones do not.",
        x="requests/s",
        y="ms",
        groups=tuple(groups),
        limits=(*limits, Limit(label="today", axis="x", at=result.today)),
        log_y=spans_decades([point.y for group in groups for point in group.points]),
    )


def _knee_points(option: CapacityOption) -> Iterator[Point]:
    for each, height in option.knee:
        yield Point(x=each.rate, y=height, hollow=not each.holds, text="holds" if each.holds else "does not hold")
