"""The Pareto plot: the candidates of a sweep by two metrics, and the front that no candidate dominates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maitred.report.figure import PLOT_STYLE, check_plot_path, plot_format, save_figure
from maitred.report.output_file import OutputFile
from maitred.study.metrics import find_metric
from maitred.study.sweep.criteria import Criteria, Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (6.4, 4.4)
_MAX_LINEAR_RATIO = 30
"""Largest ratio of the greatest to the least value on a linear y axis."""
_MEETS, _MISSES, _BEST = "#2a6fc9", "#b9b6ae", "#d9662b"


def draw_pareto(
    criteria: Criteria,
    *,
    meeting: Sequence[Figures],
    missing: Sequence[Figures],
    front: Sequence[Figures],
    best: Figures | None,
) -> Figure:
    """Draw the candidates that meet the constraints and those that miss one, the Pareto front, and the best candidate.

    Raises ConfigError without matplotlib.
    """
    check_plot_path(Path("plot.svg"), where="a plot")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    x, y = criteria.pareto
    with mpl.rc_context(PLOT_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        _dots(axes, missing, (x, y), _MISSES, "misses a constraint")
        _dots(axes, meeting, (x, y), _MEETS, "meets the constraints" if criteria.constraints else "candidate")
        axes.plot(*_points(front, x, y), color=_MEETS, linewidth=1.2, drawstyle="steps-post", label="Pareto front", zorder=1)
        if best is not None:
            axes.scatter(*_points([best], x, y), s=90, facecolors="none", edgecolors=_BEST, linewidths=1.8, label="best")
        _limits(axes, criteria, (x, y))
        axes.set_xlabel(_label(x))
        axes.set_ylabel(_label(y))
        _set_y_scale(axes, _points([*missing, *meeting], x, y)[1])
        axes.legend(fontsize=8)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix. Raises ConfigError for an unknown suffix, and if it cannot be written."""
    kind = plot_format(path)
    with OutputFile(path) as file:
        save_figure(figure, kind, file.write)


def _dots(axes: Axes, candidates: Sequence[Figures], names: tuple[str, str], colour: str, label: str) -> None:
    if candidates:
        axes.scatter(*_points(candidates, *names), s=22, color=colour, label=label, zorder=2)


def _limits(axes: Axes, criteria: Criteria, names: tuple[str, str]) -> None:
    """Draw the constraints on the two metrics as dashed lines."""
    x, y = names
    for constraint in criteria.constraints:
        line = axes.axvline if constraint.metric == x else axes.axhline if constraint.metric == y else None
        if line is not None:
            line(constraint.limit, color="#6a6862", linestyle="--", linewidth=1, label="constraint")


def _set_y_scale(axes: Axes, heights: list[float]) -> None:
    """Make the y axis logarithmic if the least value could not be seen beside the greatest."""
    if heights and min(heights) > 0 and max(heights) > _MAX_LINEAR_RATIO * min(heights):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def _points(candidates: Sequence[Figures], x: str, y: str) -> tuple[list[float], list[float]]:
    """Return the coordinates of the candidates that have both metrics."""
    pairs = [(figures[x], figures[y]) for figures in candidates]
    known = [(across, up) for across, up in pairs if across is not None and up is not None]
    return [across for across, _ in known], [up for _, up in known]


def _label(name: str) -> str:
    group = name.rpartition(".")[0]
    label = find_metric(name, costs=True).label
    return f"{label} ({group})" if group else label
