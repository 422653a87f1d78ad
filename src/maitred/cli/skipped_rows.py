"""What a command says of the rows of a trace that it left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from maitred.cli.printable import printable

if TYPE_CHECKING:
    from maitred.workload import Trace


def report_skipped(trace: Trace) -> None:
    """How many they are and what was wrong with the first; nothing if there are none."""
    if trace.first_skipped:
        rows = "1 row was" if trace.num_skipped == 1 else f"{trace.num_skipped:,} rows were"
        typer.echo(f"maitred: {rows} skipped; the first: {printable(str(trace.first_skipped))}", err=True)
