"""Figure: the panels of a run as one matplotlib figure, and a scatter as another, for papers, slides and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maitred.core.errors import ConfigError, missing_library, nearest_name_hint
from maitred.report.output_file import OutputFile
from maitred.report.panels import Group, Panel, Scatter, latency_panels, time_panels
from maitred.report.slo import Slo
from maitred.sim import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT_FORMATS: Final = ("png", "svg", "pdf")
_COLOURS = ("#2a6fc9", "#d9662b", "#1b9a6c", "#8a4fb8", "#b8860b", "#c2405a")
_COLUMNS = 3
_PANEL_INCHES = (4.2, 2.7)
_SCATTER_INCHES = (6.4, 4.4)
_GREY = "#6a6862"
PLOT_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e6e0",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "maitred",
    "svg.fonttype": "none",
}


def check_plot_path(path: Path, *, where: str = "") -> None:
    """Check that a plot can be written to this file. Raises ConfigError for an unknown suffix, and without matplotlib."""
    plot_format(path, where=where)
    _require_matplotlib(where)


def write_plot(results: Results, slo: Slo, path: Path, write: Callable[[bytes], object]) -> None:
    """Write the figure (`draw_run`) in the format of the suffix. The same run gives the same bytes."""
    save_figure(draw_run(results, slo), plot_format(path), write)


def _require_matplotlib(where: str) -> None:
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise missing_library("matplotlib", "plots", where) from error


def plot_format(path: Path, *, where: str = "") -> str:
    """Return the format that the suffix names. Raises ConfigError if it names none."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in PLOT_FORMATS:
        what = f"{path.name} has no suffix of a picture format"
        raise ConfigError(
            what, where=where, hint=nearest_name_hint(kind, PLOT_FORMATS) if kind else f"end it in .{', .'.join(PLOT_FORMATS)}"
        )
    return kind


def draw_run(results: Results, slo: Slo) -> Figure:
    """Draw the latencies by class, then the panels over time. Raises ConfigError without matplotlib."""
    _require_matplotlib("a plot")
    import matplotlib as mpl

    panels = [*latency_panels(results, slo), *time_panels(results)]
    rows = max(ceil(len(panels) / _COLUMNS), 1)
    with mpl.rc_context(PLOT_STYLE):
        figure = _new_figure(rows)
        for axes, panel in zip(figure.subplots(rows, _COLUMNS, squeeze=False).flat, panels, strict=False):
            _draw(axes, panel)
        for axes in figure.axes[len(panels) :]:
            axes.set_visible(False)
    return figure


def draw_scatter(scatter: Scatter, path: str | Path | None = None) -> Figure:
    """Draw the points, without intervals, and write the figure to `path` if it is given. Raises ConfigError without matplotlib,
    for an unknown suffix, and if it cannot be written."""
    _require_matplotlib("a plot")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(PLOT_STYLE):
        figure = Figure(figsize=_SCATTER_INCHES, layout="constrained")
        axes = figure.subplots()
        for group, colour in zip(scatter.groups, _COLOURS * len(scatter.groups), strict=False):
            _draw_group(axes, group, colour)
        for limit in scatter.limits:
            line = axes.axvline if limit.axis == "x" else axes.axhline
            line(limit.at, color=_GREY, linestyle="--", linewidth=1, label=limit.label)
        axes.set(xlabel=scatter.x, ylabel=scatter.y)
        axes.set_yscale("log") if scatter.log_y else axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.legend(fontsize=8)
    if path is not None:
        kind = plot_format(Path(path))
        with OutputFile(Path(path)) as file:
            save_figure(figure, kind, file.write)
    return figure


def _draw_group(axes: Axes, group: Group, colour: str) -> None:
    x, y = [point.x for point in group.points], [point.y for point in group.points]
    faces = ["none" if point.hollow else colour for point in group.points]
    axes.scatter(x, y, s=24, facecolors=faces, edgecolors=colour, label=group.label, zorder=2)
    if group.line:
        axes.plot(x, y, color=colour, linewidth=1.3, drawstyle="steps-post" if group.line == "steps" else "default", zorder=1)


def _new_figure(rows: int) -> Figure:
    """Return an empty figure with room for `rows` rows of panels."""
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    figure = Figure(figsize=(_COLUMNS * width, rows * height))
    figure.subplots_adjust(left=0.055, right=0.985, bottom=0.18 / rows, top=1 - 0.12 / rows, wspace=0.25, hspace=0.45)
    return figure


def save_figure(figure: Figure, kind: str, write: Callable[[bytes], object]) -> None:
    """Write the figure in one of `PLOT_FORMATS`. The same figure gives the same bytes."""
    import matplotlib as mpl

    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = BytesIO()
    with mpl.rc_context(PLOT_STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=dated.get(kind))
    write(buffer.getvalue())


def _draw(axes: Axes, panel: Panel) -> None:
    for curve, colour in zip(panel.curves, _COLOURS * len(panel.curves), strict=False):
        axes.plot(curve.x, curve.y, color=colour, label=curve.label, linewidth=1.6)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    _set_scales(axes, panel)
    if panel.target is not None:
        axes.axvline(panel.target, color=_GREY, linestyle="--", linewidth=1, label="SLO")
    if len(panel.curves) > 1 or panel.target is not None:
        axes.legend(fontsize=8)


def _set_scales(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_ylim(0, 1.02 if panel.shares else None)
    if panel.counts_requests:
        axes.yaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))
    if panel.log_x:
        _set_log_scale(axes, panel.log_from)
    if panel.shares:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _set_log_scale(axes: Axes, begin: float) -> None:
    """Make the x axis logarithmic, with plain numbers that do not overlap: powers of ten, or round numbers on a short axis."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axes.set_xscale("log")
    if begin:
        axes.set_xlim(left=begin / 1.1)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(numticks=6) if high >= 20 * low else MaxNLocator(nbins=5, min_n_ticks=2))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
