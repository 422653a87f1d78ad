"""`maitred convert`: a trace in another format. `maitred formats`: the formats that there are."""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated

import typer

from maitred.cli.flags import NO_VALUE
from maitred.cli.terminal import printable
from maitred.cli.trace_output import TraceTarget, report_skipped
from maitred.core.errors import ConfigError


def run(
    source: Annotated[str, typer.Argument(help="A trace, as for maitred simulate --trace.", metavar="IN")],
    target: Annotated[str, typer.Argument(help="blis:FILE or maitred:FILE; gzipped if it ends in .gz.", metavar="OUT")],
    max_requests: Annotated[int | None, typer.Option(help="Most requests that are written.", metavar="N", min=0)] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be used, and count them.", metavar=NO_VALUE)
    ] = False,
) -> None:
    """Write a trace in another format: BLIS's TraceV2, with its header NAME.yaml beside it, or our own.

    Sessions are written as recorded. Information that the format cannot hold is left out, with a warning.
    """
    from maitred.workload import BadRows, open_trace
    from maitred.workload.trace_writer import trace_lines

    written = TraceTarget(target, where="OUT")
    with open_trace(source, bad_rows=BadRows.SKIP if skip_bad_rows else BadRows.REFUSE) as trace:
        read = {os.path.realpath(path) for path in trace.files}
        for path in written.files:
            if os.path.realpath(path) in read:
                raise ConfigError("this is the trace itself, or its header", where=str(path), hint="name another file")
        with written:
            rows = -1  # the header
            for line in trace_lines(written.writer, islice(trace, max_requests)):
                written.write(line)
                rows += 1
    report_skipped(trace)
    written.report_losses()
    typer.echo(f"{rows:,} requests", err=True)


def formats() -> None:
    """List the trace formats, each with a description and the beginning of a file.

    A trace is named as FORMAT:FILE, or as FILE where its first line tells the format. It may be gzipped.
    """
    from maitred.workload import FORMATS

    for name in FORMATS:
        trace_format = FORMATS.create(name)
        typer.echo(printable(f"{name}: {trace_format.description}"))
        typer.echo(printable(f"    {trace_format.example}"))
