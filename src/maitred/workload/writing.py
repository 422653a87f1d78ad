"""Writing traces: jobs to the text of a file, one by one.

Formats hold different things. What a format cannot say of a job is left out and counted (`Lost`), so that whoever asked for the
file can be told.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import ClassVar, Protocol

from maitred.registry import Registry
from maitred.workload.job import Job


class Lost(Enum):
    """What may have no place in a format."""

    PREFIX = "what its prompt shares with others"
    ID = "its id"
    DEADLINE = "its deadline"
    TARGET = "its latency target"
    PRIORITY = "its priority"
    NAMESPACE = "its cache namespace"


class TraceWriter(Protocol):
    """Writes the rows of one file."""

    lost: Counter[Lost]
    """How many jobs lost what."""
    companion: ClassVar[tuple[str, str] | None]
    """A file that belongs beside it: its suffix, and what is in it."""

    def lines(self, jobs: Iterable[Job]) -> Iterator[str]:
        """The header and a row per job, each with its newline. Raises ConfigError for a job that cannot be said at all."""
        ...


WRITERS: Registry[TraceWriter] = Registry("format for writing traces", group="maitred.trace_writers")


_BREAKS = str.maketrans("\r\n", "  ")


def csv_line(fields: Iterable[object]) -> str:
    """Quoted where need be. A line break within a field becomes a blank: a row is a line."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([str(field).translate(_BREAKS) for field in fields])
    return text.getvalue()
