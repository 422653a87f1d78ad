"""The Pareto plot: two metrics against each other, and the candidates that none betters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from maitred.report.figure import PLOT_STYLE, check_plot_path, plot_format, save_figure
from maitred.report.output_file import OutputFile
from maitred.study.metrics import find_metric
from maitred.study.sweep.result import CandidateResult, SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (6.4, 4.4)
_WIDE = 30
"""How many times the least the greatest may be on an even scale."""
_MEETS, _MISSES, _BEST = "#2a6fc9", "#b9b6ae", "#d9662b"


def draw_pareto(swept: SweepResult) -> Figure:
    """Raises ConfigError without matplotlib."""
    check_plot_path(Path("plot.svg"), where="a plot")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    x, y = swept.criteria.pareto
    with mpl.rc_context(PLOT_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        _dots(axes, [each for each in swept.candidates if not each.meets_constraints], (x, y), _MISSES, "misses a constraint")
        _dots(
            axes,
            [each for each in swept.candidates if each.meets_constraints],
            (x, y),
            _MEETS,
            "meets the constraints" if swept.criteria.constraints else "candidate",
        )
        front = swept.pareto_front
        axes.plot(*_points(front, x, y), color=_MEETS, linewidth=1.2, drawstyle="steps-post", label="none betters it", zorder=1)
        if swept.best is not None:
            axes.scatter(*_points([swept.best], x, y), s=90, facecolors="none", edgecolors=_BEST, linewidths=1.8, label="best")
        _limits(axes, swept, (x, y))
        axes.set_xlabel(_label(x))
        axes.set_ylabel(_label(y))
        _set_y_scale(axes, _points([*swept.candidates], x, y)[1])
        axes.legend(fontsize=8)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """As the name of the file says. Raises ConfigError."""
    kind = plot_format(path)
    with OutputFile(path) as file:
        save_figure(figure, kind, file.write)


def _dots(axes: Axes, tried: list[CandidateResult], names: tuple[str, str], colour: str, label: str) -> None:
    if tried:
        axes.scatter(*_points(tried, *names), s=22, color=colour, label=label, zorder=2)


def _limits(axes: Axes, swept: SweepResult, names: tuple[str, str]) -> None:
    x, y = names
    for constraint in swept.criteria.constraints:
        line = axes.axvline if constraint.metric == x else axes.axhline if constraint.metric == y else None
        if line is not None:
            line(constraint.limit, color="#6a6862", linestyle="--", linewidth=1, label="constraint")


def _set_y_scale(axes: Axes, heights: list[float]) -> None:
    """Logarithmic where the least could not be seen beside the greatest."""
    if heights and min(heights) > 0 and max(heights) > _WIDE * min(heights):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def _points(tried: list[CandidateResult], x: str, y: str) -> tuple[list[float], list[float]]:
    found = [(each.figures[x], each.figures[y]) for each in tried]
    known = [(across, up) for across, up in found if across is not None and up is not None]
    return [across for across, _ in known], [up for _, up in known]


def _label(name: str) -> str:
    group = name.rpartition(".")[0]
    label = find_metric(name, costs=True).label
    return f"{label} ({group})" if group else label
