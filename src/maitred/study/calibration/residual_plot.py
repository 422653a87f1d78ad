"""A chart of the residuals of a fit: the error of each measurement by its time, and how the errors are distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from maitred.core.units import MILLISECOND
from maitred.report import OutputFile
from maitred.report.figure import PLOT_STYLE, plot_format, save_figure
from maitred.study.calibration.fitting import Fit

_MOST: Final = 1.0
"""Largest error that is drawn where it is; larger ones are drawn at the edge."""
_BINS: Final = 60


def plot_residuals(fit: Fit, path: Path, source: str) -> None:
    """Write the chart in the format of the suffix. Raises ConfigError if it cannot be written."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    measured, predicted = np.array(fit.measured), np.array(fit.predicted)
    errors = predicted / measured - 1
    num_beyond = np.count_nonzero(np.abs(errors) > _MOST)
    at_edge = f" ({num_beyond:,} beyond ±{_MOST:.0%} drawn at the edge)" if num_beyond else ""
    errors = np.clip(errors, -_MOST, _MOST)
    with mpl.rc_context(PLOT_STYLE):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        by_time, spread = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
        by_time.scatter(measured / MILLISECOND, errors, s=6, alpha=0.4, linewidths=0, color="#2a6fc9", rasterized=True)
        by_time.set(xscale="log", xlabel=f"measured, ms{at_edge}", ylabel="(predicted - measured) / measured")
        by_time.set_title(f"{source}: {len(errors):,} measurements, {fit.residuals.quality}")
        spread.hist(errors, bins=_BINS, orientation="horizontal", color="#2a6fc9")
        spread.set(xlabel="measurements")
        spread.set_title(f"mean size {fit.residuals.mape:.1%}")
        for axes in (by_time, spread):
            axes.axhline(0, color="#333333", linewidth=0.8)
            axes.yaxis.set_major_formatter(lambda share, _: f"{share:+.0%}")
    with OutputFile(path, where="--plot") as file:
        save_figure(figure, plot_format(path), file.write)
