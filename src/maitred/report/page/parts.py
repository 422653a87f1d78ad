"""Parts of pages: the frame of every page (the head with the style, the title, and the scripts that draw its charts), tables,
and charts, whose curves and points are JSON, which `script.js` gives to uPlot.

uPlot (`webpage`) draws them, and is copied into the page. It has the axes, the zoom and the cursor that all charts over time
share. A reader that does not see a chart gets its description (`aria-label`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from maitred.report.panels import Curve, Floats, Panel, Scatter
from maitred.webpage import read_page_file, shared_scripts, shared_style

ZOOM_NOTE = "Drag to zoom in, double click to see all again; with the keyboard +, -, 0 and the arrows."
_TINY = 1e-3
"""Stands for 0 on a logarithmic axis, in the unit of the axis."""


def page_parts(title: str, command: str, intro: str, body: Iterable[str]) -> Iterator[str]:
    """Yield a page in pieces. `command` is the one that makes it; `intro` and `body` are HTML."""
    style = shared_style() + read_page_file(__package__, "style.css")
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{escape(title)} – maitred</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
    yield f'<header><div class="eyebrow">maitred {escape(command)}</div><h1>{escape(title)}</h1>\n{intro}</header>\n<main>\n'
    yield from body
    yield '</main>\n<noscript><p class="warning">The charts of this page are drawn by its own script.</p></noscript>\n'
    uplot, charts = shared_scripts()
    own = read_page_file(__package__, "script.js")
    yield f"<script>\n{uplot}</script>\n<script>\n{charts}{own}</script>\n</body>\n</html>\n"


def table_html(table: Table, caption: str) -> str:
    """Return a table for the terminal as one of the page. Marks of style in its texts are left out.

    Each cell has the heading of its column as well: on a phone a row is a list of headings and values, as wide as the screen.
    """
    headings = [" ".join(_plain(column.header).replace("_\n", "_").split()) for column in table.columns]
    head = "".join(f'<th scope="col">{_text(column.header)}</th>' for column in table.columns)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = "".join(f"<tr>{''.join(map(_cell, headings, row))}</tr>" for row in rows)
    return framed_table(caption, f"<tr>{head}</tr>", body)


def labelled_cell(heading: str, text: str) -> str:
    """Return a cell of HTML that knows the heading of its column."""
    return f'<td data-label="{escape(heading, quote=True)}">{text}</td>'


def _cell(heading: str, cell: object) -> str:
    return labelled_cell(heading, _text(cell))


def framed_table(caption: str, head: str, body: str) -> str:
    """Return a table of these rows of HTML. Where the page is narrower it scrolls by itself, and on a phone its rows are
    lists."""
    title = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>\n"
    )


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _text(cell: object) -> str:
    return escape(_plain(cell)).replace("\n", "<br>")


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
    shown = escape(msgspec.json.encode(data).decode(), quote=True)
    return (
        f'<figure class="{kind}"><figcaption>{escape(title)} <small>{escape(note)}</small></figcaption>'
        f'<div class="plot" role="img" tabindex="0" aria-label="{escape(about)}" data-{kind}="{shown}"></div>'
        "</figure>\n"
    )


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
