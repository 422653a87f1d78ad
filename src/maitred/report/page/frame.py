"""Frame: what every page has: the head with the style, the title, and the scripts that draw its charts; and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files

from rich.table import Table
from rich.text import Text

ZOOM_NOTE = "Drag to zoom in, double click to see all again; with the keyboard +, -, 0 and the arrows."


def page_parts(title: str, command: str, intro: str, body: Iterable[str]) -> Iterator[str]:
    """Yield a page in pieces. `command` is the one that makes it; `intro` and `body` are HTML."""
    style = _file("uplot.min.css") + _file("style.css")
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{escape(title)} – maitred</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
    yield f'<header><div class="eyebrow">maitred {escape(command)}</div><h1>{escape(title)}</h1>\n{intro}</header>\n<main>\n'
    yield from body
    yield '</main>\n<noscript><p class="warning">The charts of this page are drawn by its own script.</p></noscript>\n'
    yield f"<script>\n{_file('uplot.min.js')}</script>\n<script>\n{_file('script.js')}</script>\n</body>\n</html>\n"


def table_html(table: Table, caption: str) -> str:
    """Return a table for the terminal as one of the page. Marks of style in its texts are left out."""
    head = "".join(f'<th scope="col">{_text(column.header)}</th>' for column in table.columns)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    title = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n"
    )


def _text(cell: object) -> str:
    plain = cell.plain if isinstance(cell, Text) else str(cell)
    return escape(plain).replace("\n", "<br>")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
