"""How the result of a study is shown: printed on a terminal, and as one HTML page that needs no network.

Both show the same: tables with a few lines above each, notes on the figures, and on the page one picture (the paired
differences with their intervals, the Pareto front, or the knee of latency over the rate). The same result gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import msgspec
from rich.console import Console
from rich.table import Table

from maitred.report.page.parts import ZOOM_NOTE, page_parts, scatter_html, table_html
from maitred.report.panels import Scatter
from maitred.report.table import print_table, print_to_text


class ShownTable(msgspec.Struct, frozen=True):
    """A table, and what is said of it."""

    table: Table
    caption: str
    """The heading of the table on a page."""
    lines: tuple[str, ...]
    """What stands above the table on a terminal, and at the head of a page. Empty lines are left out."""


class Presentation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a study, ready to be shown."""

    title: str
    command: str
    """The command that makes such a result."""
    tables: tuple[ShownTable, ...]
    notes: tuple[str, ...]
    scatter: Scatter

    def print(self, console: Console) -> None:
        """Print the tables within 80 columns, as far as that cuts no figure, and the notes below."""
        for shown in self.tables:
            for line in filter(None, shown.lines):
                console.print(line, highlight=False, markup=False)
            print_table(shown.table, console)
        for note in self.notes:
            console.print(note, style="dim", highlight=False, markup=False)

    def page(self) -> bytes:
        """Return the page."""
        return "".join(self._page()).encode()

    def _page(self) -> Iterator[str]:
        # Two tables may have a line in common, such as what the first side is.
        lines = dict.fromkeys(line for shown in self.tables for line in shown.lines)
        intro = "".join(f'<p class="quiet">{escape(line)}</p>\n' for line in (*lines, *self.notes) if line)
        picture = f'<section><p class="quiet">{ZOOM_NOTE}</p>\n{scatter_html(self.scatter)}</section>\n<section>\n'
        tables = [table_html(shown.table, shown.caption) for shown in self.tables]
        return page_parts(self.title, self.command, intro, [picture, *tables, "</section>\n"])


class StudyResult(msgspec.Struct, frozen=True):
    """The result of a study."""

    def presentation(self) -> Presentation:
        """Return the tables, the notes and the picture of the result."""
        raise NotImplementedError

    def __str__(self) -> str:
        return print_to_text(self.presentation().print)
