"""Writing traces: the protocol of a writer, and a workload that is written to a file while it runs.

Formats have room for different things. A writer leaves out what its format cannot hold and counts it (`LostField`), so that the
command can report it.

`RecordingWorkload` writes the jobs of a run in the order of arrival. The follow-up of a reactive workload may lie in the
future: the next round of a session arrives a think time after the answer. So a job is held until the clock of the run has
passed its arrival; later jobs cannot arrive before it. Example: at 10 s a session's next round is due at 15 s; it is written
after the jobs that arrive from 10 s to 15 s, as soon as the clock passes 15 s.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Protocol

import msgspec

from maitred.core.registry import Registry
from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.units import Micros
from maitred.workload.job import Job, ReactiveWorkload, is_program_over
from maitred.workload.prefix_keys import Pieces, goes_on, pieces_of, shared_beginning

HEADER_LOOKAHEAD = 4_096
"""Number of jobs that a writer sees before it writes the header."""


class LostField(Enum):
    """What a format may have no place for; the value is how a message names it."""

    PREFIX = "what its prompt shares with others"
    SESSION = "its session, in which prompts do not accumulate as in others"
    PARENT = "the program that forked its program"
    CLASS = "its class"
    LIMIT = "its limit of output tokens"
    ID = "its id"
    DEADLINE = "its deadline"
    TARGET = "its latency target"
    PRIORITY = "its priority"
    NAMESPACE = "its cache namespace"
    ROUTING_KEY = "its routing key"
    THINK_TIME = "its think time"


class RequestMeasurement(msgspec.Struct, frozen=True):
    """The outcome of a request. Instants are in µs, or -1 if they never came."""

    first_token: Micros
    finished: Micros
    output_tokens: int
    outcome: str
    """`completed`, `timed_out`, `rejected`, ..."""


class TraceWriter(Protocol):
    """A writer of the rows of one file."""

    lost_fields: Counter[LostField]
    """Number of jobs that lost each field."""

    @property
    def companion_file(self) -> tuple[str, str] | None:
        """The suffix and the content of a file that belongs beside the rows, or None. The content is final after the last
        row."""
        return None

    def header(self, first_jobs: Sequence[Job]) -> str:
        """Return the header with its newline. Called once, with the first `HEADER_LOOKAHEAD` jobs, or all if there are
        fewer."""
        ...

    def row(self, job: Job) -> str:
        """Return the row of a job, with its newline."""
        ...

    def with_measurement(self, line: str, measurement_of: Callable[[RequestId], RequestMeasurement | None]) -> str:
        """Return a line of the file, the header included, with the measurement of its request if the format has columns for
        it."""
        return line


class Conversations:
    """The latest conversation of each program, in the order in which the requests are written."""

    def __init__(self) -> None:
        self._latest: dict[str, PrefixKeys] = {}

    def tokens_before(self, job: Job) -> int:
        """Return the tokens of the conversation that the prompt of `job` goes on with: the last prompt of its program and the
        response to it, or for the first request of a program those of its parent. 0 if it begins anew, or nothing is known."""
        prompt, before = pieces_of(job.request.prefix), self._before(job)
        return before[-1][1] if prompt and before and goes_on(prompt, before) else 0

    def repeats_a_part(self, job: Job) -> bool:
        """Return whether the prompt of `job` repeats text of the conversation before it, beside the prefix of a group."""
        prompt, before = pieces_of(job.request.prefix) or (), self._before(job) or ()
        is_shared = bool(shared_beginning(job.request.prefix).tokens)
        return not {name for name, _ in prompt[is_shared:]}.isdisjoint(name for name, _ in before)

    def _before(self, job: Job) -> Pieces | None:
        request = job.request
        return pieces_of(self._latest.get(request.program) or self._latest.get(request.parent_program))

    def add(self, job: Job) -> None:
        """Note the conversation after `job`, if later prompts may contain it."""
        if job.request.program and job.conversation_prefix is not None:
            self._latest[job.request.program] = job.conversation_prefix


WRITERS: Registry[TraceWriter] = Registry(
    "format for writing traces",
    TraceWriter,
    group="maitred.trace_writers",
    packages=["maitred.workload.formats"],
    methods=["header", "row"],
    flag="--trace-output",
)


def trace_lines(writer: TraceWriter, jobs: Iterable[Job]) -> Iterator[str]:
    """Yield the lines of a trace of `jobs`."""
    jobs = iter(jobs)
    first_jobs = list(islice(jobs, HEADER_LOOKAHEAD))
    yield writer.header(first_jobs)
    yield from map(writer.row, chain(first_jobs, jobs))


_LINE_BREAKS = str.maketrans("\r\n", "  ")


def csv_line(fields: Iterable[object]) -> str:
    """Return a CSV line, quoted where necessary. Line breaks within fields become blanks, so that a row is one line."""
    texts = list(map(str, fields))
    line = ",".join(texts)
    # Nearly every row needs no quotes, and a gateway that records writes one for each request: this is six times as fast.
    if line.count(",") == len(texts) - 1 and not ('"' in line or "\n" in line or "\r" in line):
        return line + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([field.translate(_LINE_BREAKS) for field in texts])
    return text.getvalue()


class RecordingWorkload:
    """The jobs of a workload, each written when it has arrived. Call `close` at the end of the run."""

    def __init__(self, jobs: Iterable[Job], writer: TraceWriter, write: Callable[[str], object]) -> None:
        """`write` receives the lines of the file."""
        self._jobs = jobs
        self._writer = writer
        self._write = write
        self._not_arrived: list[tuple[Micros, int, Job]] = []
        """A heap of jobs by arrival and id."""
        self._first_jobs: list[Job] | None = []
        """The jobs for the header, until there are enough; then None."""

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

    def is_program_over(self, program: str) -> bool:
        return is_program_over(self._jobs, program)

    def close(self) -> None:
        """Write the remaining jobs, including those that have not arrived."""
        while self._not_arrived:
            self._write_job(heappop(self._not_arrived)[2])
        self._write_header()

    def _hold(self, job: Job) -> None:
        heappush(self._not_arrived, (job.request.arrival, job.request.id, job))

    def _write_arrived(self, now: Micros) -> None:
        # Strictly before `now`: another job may still arrive at this very instant, and rows are ordered by arrival and id.
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
