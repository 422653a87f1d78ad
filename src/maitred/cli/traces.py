"""Traces that commands write: `maitred convert`, and the recording of a simulation (`--trace-output`).

A target is `blis:FILE` or `maitred:FILE`, perhaps with a companion file. A run is recorded while it happens: its requests go to
a temporary file as they arrive, and to the trace with their measured times when the run is over.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, BinaryIO, Self, cast

import typer

from maitred.cli.flags import SWITCH
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.printing import printable

if TYPE_CHECKING:
    from maitred.report import OutputFile
    from maitred.sim import Results
    from maitred.workload import Job, Trace, TraceWriter


def convert(
    source: Annotated[str, typer.Argument(help="A trace, as for maitred simulate --trace.", metavar="IN")],
    target: Annotated[str, typer.Argument(help="blis:FILE or maitred:FILE; gzipped if it ends in .gz.", metavar="OUT")],
    max_requests: Annotated[int | None, typer.Option(help="Most requests that are written.", metavar="N", min=0)] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be used, and count them.", metavar=SWITCH)
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


class TraceTarget:
    """The files of a trace, for a `with`: they exist after the block if it ends without an exception, and not otherwise."""

    def __init__(self, spec: str, *, where: str) -> None:
        """`where` is the flag or argument that gave `spec`.

        Raises ConfigError for a `spec` that names no format and file.
        """
        self.writer, self.path = _parse_target(spec, where)
        self._where = where
        self._stack = ExitStack()
        self._text: OutputFile | gzip.GzipFile

    @property
    def files(self) -> Sequence[Path]:
        """The files that are written. Raises ConfigError if two of them are the same file."""
        return (
            (self.path,)
            if self.writer.companion_file is None
            else (self.path, self._companion_path(self.writer.companion_file[0]))
        )

    def __enter__(self) -> Self:
        from maitred.report import OutputFile

        with ExitStack() as stack:
            if self.writer.companion_file is not None:
                path = self._companion_path(self.writer.companion_file[0])
                stack.push(partial(self._write_companion, stack.enter_context(OutputFile(path, where=self._where))))
            self._text = file = stack.enter_context(OutputFile(self.path, where=self._where))
            if self.path.suffix == ".gz":
                sink = cast(BinaryIO, _Sink(file))
                # Without a name and a time in the header, the same trace gives the same bytes.
                self._text = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=sink, mtime=0))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def _write_companion(self, file: OutputFile, kind: type[BaseException] | None, *_: object) -> None:
        """Write the companion file, whose content follows from the rows, unless an exception has ended the block."""
        if kind is None and self.writer.companion_file is not None:
            file.write(self.writer.companion_file[1].encode())

    def write(self, line: str) -> None:
        """Write a line. Raises ConfigError if the disk is full or gone."""
        self._text.write(line.encode("utf-8", "replace"))

    def report_losses(self) -> None:
        """Print a warning for each kind of information that the format cannot hold."""
        for what, count in self.writer.lost_fields.items():
            if count:
                typer.echo(f"maitred: warning: the format cannot say of a request {what.value}: {count:,} times", err=True)

    def _companion_path(self, suffix: str) -> Path:
        plain = self.path.with_suffix("") if self.path.suffix == ".gz" else self.path
        beside = plain.with_suffix(suffix)
        if beside == self.path:
            hint = "name it NAME.csv or NAME.csv.gz"
            raise ConfigError(f"its header would be {beside} itself", where=self._where, hint=hint)
        return beside


class _Sink:
    """The part of a file that gzip needs."""

    def __init__(self, file: OutputFile) -> None:
        self.write = file.write

    def flush(self) -> None:
        pass


def _parse_target(spec: str, where: str) -> tuple[TraceWriter, Path]:
    from maitred.workload import WRITERS

    name, _, path = spec.partition(":")
    if name not in WRITERS or not path:
        hint = f"write it as {' or '.join(f'{known}:FILE' for known in WRITERS)}"
        what = f"unknown format {name!r} for writing" if path else f"{spec!r} names no format and file"
        near = nearest_name_hint(name, WRITERS) if path else ""
        raise ConfigError(what, where=where, hint=f"{near} {hint}" if near.startswith("did") else hint)
    return WRITERS.create(name), Path(path)


class Recording:
    """The requests of a run, which are recorded or not."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = jobs
        """The jobs to simulate."""
        self.results: Results | None = None
        """The results of the run; to be set before the block ends."""


@contextmanager
def recorded_run(jobs: Iterable[Job], target: TraceTarget | None, *, summary_only: bool) -> Iterator[Recording]:
    """Write `jobs` to `target`, if there is one, while they are simulated. The file is there when the block ends well."""
    recording = Recording(jobs)
    if target is None:
        yield recording
        return
    from maitred.workload import RecordingWorkload

    with target, TemporaryFile("w+", encoding="utf-8", errors="surrogatepass", newline="\n") as rows:
        recording.jobs = recorder = RecordingWorkload(jobs, target.writer, rows.write)
        yield recording
        recorder.close()
        assert recording.results is not None
        rows.seek(0)
        _write_measured(target, rows, recording.results, summary_only=summary_only)
    target.report_losses()


def _write_measured(target: TraceTarget, rows: Iterable[str], results: Results, *, summary_only: bool) -> None:
    """Write `rows` to `target`, each with what was measured of its request."""
    from maitred.report import measured_lookup
    from maitred.workload import RequestMeasurement

    missing = None if summary_only else RequestMeasurement(-1, -1, 0, "not_arrived")
    measurement_of = measured_lookup(results)
    for row in rows:
        target.write(target.writer.with_measurement(row, lambda number: measurement_of(number) or missing))


def report_skipped(trace: Trace) -> None:
    """Print how many rows of `trace` were left out, and what was wrong with the first of them."""
    if trace.first_skipped:
        rows = "1 row was" if trace.num_skipped == 1 else f"{trace.num_skipped:,} rows were"
        typer.echo(f"maitred: {rows} skipped; the first: {printable(str(trace.first_skipped))}", err=True)
