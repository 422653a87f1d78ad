"""What the pages of maitred have in common: colours in light and dark, tables that a phone can show, and charts.

The page of a run (`report.page`) and the dashboard of a gateway (`gateway.dashboard`) are each one document that loads nothing.
Both copy the files of this folder into themselves: `theme.css`, `charts.js`, and uPlot 1.6.32 (Leon Sorokin, MIT licence:
`uplot.LICENSE`), which draws.
"""

from __future__ import annotations

from importlib.resources import files


def shared_style() -> str:
    """Return the style sheet of every page."""
    return read_page_file(__package__, "uplot.min.css") + read_page_file(__package__, "theme.css")


def shared_scripts() -> tuple[str, str]:
    """Return the scripts of every page, in their order: uPlot, and what all draw with it."""
    return read_page_file(__package__, "uplot.min.js"), read_page_file(__package__, "charts.js")


def read_page_file(package: str, name: str) -> str:
    """Return the text of a file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
