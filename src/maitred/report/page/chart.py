"""Chart: a panel or scatter as HTML. Curves and points are JSON, which `script.js` gives to uPlot.

uPlot 1.6.32 (Leon Sorokin, MIT licence: `uplot.LICENSE`) draws them, and is copied into the page. It has the axes, the zoom and
the cursor that all charts over time share. A reader that does not see a chart gets its description (`aria-label`).
"""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from maitred.report.panels import Curve, Floats, Panel
from maitred.report.scatter import Scatter

_TINY = 1e-3
"""Stands for 0 on a logarithmic axis, in the unit of the axis."""


def chart_html(panel: Panel) -> str:
    """Return the panel as a `figure` element."""
    return figure_html(panel.title, panel.y_label, panel.about, "chart", _chart(panel))


def scatter_html(scatter: Scatter) -> str:
    """Return the picture as a `figure` element."""
    data: dict[str, Any] = {
        "x": scatter.x,
        "y": scatter.y,
        "groups": scatter.groups,
        "limits": scatter.limits,
        "names": scatter.names,
        "log": scatter.log_y,
    }
    return figure_html(scatter.title, scatter.y, scatter.about, "scatter", data)


def figure_html(title: str, note: str, about: str, kind: str, data: dict[str, Any]) -> str:
    """Return a `figure` element whose picture `script.js` draws from `data`. `about` describes it in words."""
    return (
        f'<figure class="{kind}"><figcaption>{escape(title)} <small>{escape(note)}</small></figcaption>'
        f'<div class="plot" role="img" tabindex="0" aria-label="{escape(about)}" data-{kind}="{_attribute(data)}"></div>'
        "</figure>\n"
    )


def _attribute(data: dict[str, Any]) -> str:
    return escape(msgspec.json.encode(data).decode(), quote=True)


def _chart(panel: Panel) -> dict[str, Any]:
    return {
        "unit": panel.x_label,
        "log": panel.log_x,
        "from": max(panel.log_from, _TINY) if panel.log_x else 0,
        "whole": panel.counts_requests,
        "shares": panel.shares,
        "time": panel.over_time,
        "target": panel.target,
        "curves": [_curve(curve, panel.log_x) for curve in panel.curves],
    }


def _curve(curve: Curve, log_x: bool) -> dict[str, Any]:
    x = curve.x.clip(min=_TINY) if log_x else curve.x
    band = {} if curve.low is None or curve.high is None else {"low": rounded(curve.low), "high": rounded(curve.high)}
    return {"label": curve.label, "x": rounded(x), "y": rounded(curve.y), **band}


def rounded(values: Floats) -> list[float]:
    """Return these values with four significant digits."""
    return [float(f"{value:.4g}") for value in values.tolist()]
