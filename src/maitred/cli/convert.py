"""`maitred convert`: a trace in another format."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from maitred.cli.flags import NO_VALUE
from maitred.cli.printable import printable
from maitred.errors import ConfigError, nearest

if TYPE_CHECKING:
    from maitred.workload import Trace, TraceWriter


def run(
    source: Annotated[str, typer.Argument(help="A trace, as for maitred simulate --trace.", metavar="IN")],
    target: Annotated[str, typer.Argument(help="blis:FILE or maitred:FILE; gzipped if it ends in .gz.", metavar="OUT")],
    max_requests: Annotated[int | None, typer.Option(help="Write no more than so many.", metavar="N", min=0)] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be used, and count them.", metavar=NO_VALUE)
    ] = False,
) -> None:
    """Write a trace in another format: BLIS's TraceV2, with its header NAME.yaml beside it, or our own.

    Sessions are written as recorded. What a format cannot say is left out, and said to be.
    """
    from maitred.report import OutputFile
    from maitred.workload import BadRows, open_trace

    writer, path = _target(target)
    with ExitStack() as stack:
        trace = stack.enter_context(open_trace(source, bad_rows=BadRows.SKIP if skip_bad_rows else BadRows.REFUSE))
        if os.path.realpath(trace.path) == os.path.realpath(path):
            raise ConfigError("this is the trace itself", where=str(path), hint="name another file")
        companion = _companion(writer, path)
        if companion:
            beside, text = companion
            stack.enter_context(OutputFile(beside, where=target)).write(text.encode())
        written = _written(trace, max_requests, writer, stack.enter_context(OutputFile(path, where=target)).write, path)
    _report(trace, writer, written)


def _target(target: str) -> tuple[TraceWriter, Path]:
    from maitred.workload import WRITERS

    name, _, path = target.partition(":")
    if name not in WRITERS or not path:
        hint = f"write it as {' or '.join(f'{known}:FILE' for known in WRITERS)}"
        what = f"unknown format {name!r} for writing" if path else f"{target!r} names no format and file"
        near = nearest(name, WRITERS) if path else ""
        raise ConfigError(what, where="OUT", hint=f"{near} {hint}".strip() if near.startswith("did") else hint)
    return WRITERS.get(name)(), Path(path)


def _companion(writer: TraceWriter, path: Path) -> tuple[Path, str] | None:
    if writer.companion is None:
        return None
    suffix, text = writer.companion
    beside = (path.with_suffix("") if path.suffix == ".gz" else path).with_suffix(suffix)
    if beside == path:
        raise ConfigError(f"its header would be {path} itself", where=str(path), hint="name it NAME.csv or NAME.csv.gz")
    return beside, text


def _written(trace: Trace, most: int | None, writer: TraceWriter, write: Callable[[bytes], int], path: Path) -> int:
    rows = -1  # the header
    if path.suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=cast(BinaryIO, _Sink(write)), mtime=0) as packed:
            for line in writer.lines(islice(trace, most)):
                packed.write(line.encode())
                rows += 1
        return rows
    for line in writer.lines(islice(trace, most)):
        write(line.encode())
        rows += 1
    return rows


class _Sink:
    """As much of a file as gzip wants to see."""

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self.write = write

    def flush(self) -> None:
        pass


def _report(trace: Trace, writer: TraceWriter, written: int) -> None:
    if trace.first_skipped:
        rows = "1 row was" if trace.skipped == 1 else f"{trace.skipped:,} rows were"
        typer.echo(f"maitred: {rows} skipped; the first: {printable(str(trace.first_skipped))}", err=True)
    for what, count in writer.lost.items():
        if count:
            typer.echo(f"maitred: warning: the format cannot say of a request {what.value}: {count:,} times", err=True)
    typer.echo(f"{written:,} requests", err=True)
