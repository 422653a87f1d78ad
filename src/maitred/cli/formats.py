"""`maitred formats`: which traces can be read, and what they look like."""

from __future__ import annotations

import typer

from maitred.cli.printable import printable


def run() -> None:
    """List the trace formats, each with what it is and how a file of it begins.

    A trace is named as FORMAT:FILE, or as FILE where its first line tells the format. It may be gzipped.
    """
    from maitred.workload import FORMATS

    for name in FORMATS:
        trace_format = FORMATS.create(name)
        typer.echo(printable(f"{name}: {trace_format.description}"))
        typer.echo(printable(f"    {trace_format.example}"))
