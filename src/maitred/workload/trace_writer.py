"""Writing traces: jobs to the text of a file, one by one.

Formats hold different things. What a format cannot say of a job is left out and counted (`LostField`), so that whoever asked
for the
file can be told.

A workload that is written down while it happens, in the order of its arrivals.

What a reactive workload gives may lie ahead: the next turn of a session comes when somebody has thought. So a job is held until
the clock of the run has passed its arrival; what comes later arrives later.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from heapq import heappop, heappush
from itertools import chain, islice
from typing import ClassVar, Protocol

import msgspec

from maitred.core.registry import Registry
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.workload.job import Job, ReactiveWorkload


class LostField(Enum):
    """What may have no place in a format."""

    PREFIX = "what its prompt shares with others"
    ID = "its id"
    DEADLINE = "its deadline"
    TARGET = "its latency target"
    PRIORITY = "its priority"
    NAMESPACE = "its cache namespace"


class RequestMeasurement(msgspec.Struct, frozen=True):
    """What became of a request. Instants in µs, -1: there was none."""

    first_token: Micros
    finished: Micros
    output_tokens: int
    outcome: str
    """`completed`, `timed_out`, `rejected`, ..."""


class TraceWriter(Protocol):
    """Writes the rows of one file."""

    lost_fields: Counter[LostField]
    """How many jobs lost what."""
    companion_file: ClassVar[tuple[str, str] | None]
    """A file that belongs beside it: its suffix, and what is in it."""

    def header(self, first_jobs: Sequence[Job]) -> str:
        """The header, once, with its newline. `first`: the first `HEADER_LOOKAHEAD` jobs, or all if they are fewer."""
        ...

    def row(self, job: Job) -> str:
        """With its newline."""
        ...

    def with_measurement(self, line: str, measurement_of: Callable[[RequestId], RequestMeasurement | None]) -> str:
        """A line of the file that was written before the run, after it: with what `happened`, if the format has a place for
        that. The header comes, too."""
        return line


HEADER_LOOKAHEAD = 4_096


def trace_lines(writer: TraceWriter, jobs: Iterable[Job]) -> Iterator[str]:
    """The text of a trace, line by line."""
    jobs = iter(jobs)
    first = list(islice(jobs, HEADER_LOOKAHEAD))
    yield writer.header(first)
    yield from map(writer.row, chain(first, jobs))


WRITERS: Registry[TraceWriter] = Registry(
    "format for writing traces",
    TraceWriter,
    group="maitred.trace_writers",
    packages=["maitred.workload.formats"],
    methods=["header", "row"],
    flag="--trace-output",
)


_LINE_BREAKS = str.maketrans("\r\n", "  ")


def csv_line(fields: Iterable[object]) -> str:
    """Quoted where need be. A line break within a field becomes a blank: a row is a line."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([str(field).translate(_LINE_BREAKS) for field in fields])
    return text.getvalue()


class RecordingWorkload:
    """The jobs of `jobs`, told of ends if those want to know. `close` when the run is over."""

    def __init__(self, jobs: Iterable[Job], writer: TraceWriter, write: Callable[[str], object]) -> None:
        """`write` gets the lines of the file."""
        self._jobs = jobs
        self._writer = writer
        self._write = write
        self._not_arrived: list[tuple[Micros, int, Job]] = []
        self._first_jobs: list[Job] | None = []
        """Those with which the file is to begin, until they are enough; then None."""

    def __iter__(self) -> Iterator[Job]:
        for job in self._jobs:
            self._hold(job)
            yield job
            self._write_arrived(job.request.arrival)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        self._write_arrived(now)
        if not isinstance(self._jobs, ReactiveWorkload):
            return ()
        following = list(self._jobs.on_request_end(request, completed, output_tokens, now))
        for job in following:
            self._hold(job)
        return following

    def close(self) -> None:
        """Write what is left, those that did not arrive any more included."""
        while self._not_arrived:
            self._write_job(heappop(self._not_arrived)[2])
        self._write_header()

    def _hold(self, job: Job) -> None:
        heappush(self._not_arrived, (job.request.arrival, job.request.id, job))

    def _write_arrived(self, now: Micros) -> None:
        while self._not_arrived and self._not_arrived[0][0] < now:
            self._write_job(heappop(self._not_arrived)[2])

    def _write_job(self, job: Job) -> None:
        if self._first_jobs is None:
            self._write(self._writer.row(job))
            return
        self._first_jobs.append(job)
        if len(self._first_jobs) == HEADER_LOOKAHEAD:
            self._write_header()

    def _write_header(self) -> None:
        if self._first_jobs is not None:
            self._write(self._writer.header(self._first_jobs))
            for job in self._first_jobs:
                self._write(self._writer.row(job))
            self._first_jobs = None
