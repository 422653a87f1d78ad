"""Writing traces: jobs to the text of a file, one by one.

Formats hold different things. What a format cannot say of a job is left out and counted (`Lost`), so that whoever asked for the
file can be told.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import ClassVar, Protocol

import msgspec

from maitred.registry import Registry
from maitred.request import RequestId
from maitred.units import Micros
from maitred.workload.job import Job


class Lost(Enum):
    """What may have no place in a format."""

    PREFIX = "what its prompt shares with others"
    ID = "its id"
    DEADLINE = "its deadline"
    TARGET = "its latency target"
    PRIORITY = "its priority"
    NAMESPACE = "its cache namespace"


class Measured(msgspec.Struct, frozen=True):
    """What became of a request. Instants in µs, -1: there was none."""

    first_token: Micros
    finished: Micros
    output_tokens: int
    outcome: str
    """`completed`, `timed_out`, `rejected`, ..."""


class TraceWriter(Protocol):
    """Writes the rows of one file."""

    lost: Counter[Lost]
    """How many jobs lost what."""
    companion: ClassVar[tuple[str, str] | None]
    """A file that belongs beside it: its suffix, and what is in it."""

    def begin(self, first: Sequence[Job]) -> str:
        """The header, once, with its newline. `first`: the first `LOOKED_AT` jobs, or all if they are fewer."""
        ...

    def row(self, job: Job) -> str:
        """With its newline."""
        ...

    def measured(self, line: str, happened: Callable[[RequestId], Measured | None]) -> str:
        """A line of the file that was written before the run, after it: with what `happened`, if the format has a place for
        that. The header comes, too."""
        return line


LOOKED_AT = 4_096


def lines(writer: TraceWriter, jobs: Iterable[Job]) -> Iterator[str]:
    """The text of a trace, line by line."""
    jobs = iter(jobs)
    first = list(islice(jobs, LOOKED_AT))
    yield writer.begin(first)
    yield from map(writer.row, chain(first, jobs))


WRITERS: Registry[TraceWriter] = Registry(
    "format for writing traces",
    TraceWriter,
    group="maitred.trace_writers",
    packages=["maitred.workload.formats"],
    methods=["begin", "row"],
)


_BREAKS = str.maketrans("\r\n", "  ")


def csv_line(fields: Iterable[object]) -> str:
    """Quoted where need be. A line break within a field becomes a blank: a row is a line."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([str(field).translate(_BREAKS) for field in fields])
    return text.getvalue()
