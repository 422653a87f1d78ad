"""One row of a trace, and the protocol of the formats it may come in."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from maitred.errors import ConfigError, MaitredError
from maitred.registry import Registry
from maitred.request import PrefixKeys, PriorityClass, Request, RequestId
from maitred.units import Micros, from_seconds
from maitred.workload.job import Job
from maitred.workload.lengths import MOST_TOKENS
from maitred.workload.lines import Lines
from maitred.workload.spec_parts import GoodputTargets


class Row(msgspec.Struct, frozen=True, gc=False):
    """What a trace says about one request. What is not said here is as in `Request` and `Job`."""

    at: Micros
    """When it arrived, by the clock of the trace (`TraceFormat.origin`)."""
    prompt_tokens: int
    output_tokens: int
    priority_class: PriorityClass = PriorityClass.DEFAULT
    prefix: PrefixKeys | None = None
    whole: PrefixKeys | None = None
    tenant: str = ""
    max_output_tokens: int | None = None
    """What the client allowed."""
    stream: bool = True
    id: int | None = None
    """Its number in the trace; unique there. None: the trace does not number its rows, so the reader does."""
    client_id: str = ""
    model: str = ""
    program: str = ""
    cache_namespace: str = ""
    slo_class: str = ""
    slo_target: Micros | None = None
    deadline: Micros | None = None
    """By the clock of the trace."""
    priority: float = 0.0
    think: Micros | None = None
    """From the end of the request before it of its program to this one; None: the trace does not say."""
    parent: str = ""
    """The program out of which its own program was launched, where it is the first of it: when a request there had ended."""
    timed: bool = True
    """Whether `at` is known. If not, it came `think` after the one before it, whenever that ended."""


def job_of(row: Row, number: RequestId, arrival: Micros) -> Job:
    """The job that `row` becomes when it arrives at `arrival`."""
    request = Request(
        id=number,
        arrival=arrival,
        prompt_tokens=row.prompt_tokens,
        max_output_tokens=row.max_output_tokens,
        client_id=row.client_id,
        model=row.model,
        priority_class=row.priority_class,
        tenant=row.tenant,
        program=row.program,
        stream=row.stream,
        priority=row.priority,
        cache_namespace=row.cache_namespace,
        deadline=None if row.deadline is None else arrival + row.deadline - row.at,
        slo_class=row.slo_class,
        slo_target=row.slo_target,
        prefix=row.prefix,
    )
    return Job(request, row.output_tokens, row.whole)


class RowError(MaitredError):
    """A row that cannot be used: what is wrong, and (`hint`) what would be right. The reader adds the place."""

    def __init__(self, what: str, hint: str) -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


class NotReplayedError(RowError):
    """A row that is as it should be and not to be replayed (a request that failed, say). It is counted, and no error."""


RowParser: TypeAlias = Callable[[str], Row | Sequence[Row | RowError]]
"""One line of the file: a row, or the rows of a session and what is wrong with others of it. Raises RowError."""


class TraceFormat(Protocol):
    """How the rows of one kind of trace file are written."""

    about: ClassVar[str] = ""
    """What it is, in a line."""
    example: ClassVar[str]
    """A file that users would recognise: its first line, or a row."""
    disorder: int = 0
    """By how many places a row may come later than in order of arrival: for what is written in another order."""
    by_session: ClassVar[bool] = False
    """Whether the rows of a session stand together, from the first to the last."""
    thinks: ClassVar[bool] = False
    """Whether rows may say how long the pause before them was (`Row.think`)."""

    goodput_slo_targets: Mapping[str, GoodputTargets] = {}
    """What the file asks for its classes, once it has begun."""

    def recognises(self, first_line: str) -> bool:
        """Does a file that begins so look like this format? Formats must not claim each other's files."""
        ...

    def with_header(self, path: Path) -> None:
        """Its header is in the file `path`, before it begins. Raises ConfigError: it has none in a file of its own."""
        raise ConfigError("only a trace of BLIS has a header in a file of its own", hint="leave it out, or name it blis:FILE")

    def begin(self, lines: Lines) -> RowParser:
        """Take what header there is off `lines`. Raises RowError if it is not what it should be."""
        ...

    def beside(self, path: Path) -> Sequence[Path]:
        """Other files that belong to a trace in the file `path`, if they are there."""
        return ()

    def origin(self, first: Micros) -> Micros:
        """Which instant of the trace's clock is time 0 of the workload, given that of its first row."""
        return first


FORMATS: Registry[TraceFormat] = Registry(
    "trace format",
    TraceFormat,
    group="maitred.trace_formats",
    packages=["maitred.workload.formats"],
    methods=["recognises", "begin"],
)


def tokens(text: str, name: str) -> int:
    """A count of tokens in a text column called `name`. Raises RowError unless it is a whole number of at least 1.

    A request of 0 tokens in or out cannot be served, so such a row is a bad one (the published Azure and Mooncake traces
    have none).
    """
    count = _whole(text, MOST_TOKENS)
    if not count:
        raise RowError(f"{name} is {text!r}", f"it must be a whole number of tokens from 1 to {MOST_TOKENS}")
    return count


_LATEST: Micros = 10**16
"""Three hundred years: clocks that count from 1970 fit."""


def micros(text: str, name: str) -> Micros:
    """Whole microseconds in a text column called `name`, 0 if it is empty. Raises RowError unless they are 0 or more."""
    span = _whole(text, _LATEST) if text else 0
    if span is None:
        raise RowError(f"{name} is {text!r}", f"it must be a whole number of microseconds from 0 to {_LATEST:.0e}")
    return span


_LATEST_SECS = 1e10


def seconds(text: str, name: str) -> Micros:
    """Seconds in a text column called `name`, to the nearest microsecond. Raises RowError unless they are 0 or more."""
    try:
        span = float(text)
    except ValueError:
        span = math.nan
    if not 0 <= span <= _LATEST_SECS:
        raise RowError(f"{name} is {text!r}", "it must be a number of seconds, 0 or more")
    return from_seconds(span)


def at_least_0(text: str, name: str) -> int:
    """A count of tokens in a text column called `name`, 0 if it is empty. Raises RowError unless it is 0 or more."""
    count = _whole(text, MOST_TOKENS) if text else 0
    if count is None:
        raise RowError(f"{name} is {text!r}", f"it must be a whole number of tokens from 0 to {MOST_TOKENS}")
    return count


def _whole(text: str, most: int) -> int | None:
    digits = text.strip()
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 20):
        return None
    number = int(digits)
    return number if number <= most else None


class Columns:
    """The columns of a comma-separated file by name, in whatever order its header has them. Others are ignored."""

    def __init__(self, header: str, *names: str, optional: Sequence[str] = ()) -> None:
        """Raises RowError if `header` lacks one of `names`, or has one of those that are read twice."""
        found = split(header)
        twice = next((name for name in (*names, *optional) if found.count(name) > 1), None)
        if twice is not None:
            raise RowError(f"the header has the column {twice} twice", "leave one of them out")
        missing = [name for name in names if name not in found]
        if missing:
            raise RowError(f"the header has no column {missing[0]}", f"the first line should be {','.join(names)}")
        self._width = len(found)
        nothing = self._width
        self._indices = [found.index(name) if name in found else nothing for name in (*names, *optional)]

    def pick(self, line: str) -> list[str]:
        """The fields of a row in the order of the names, the optional ones last and empty where the file has no such column.
        Raises RowError if it has more or fewer than the header."""
        fields = _fields(line)
        if len(fields) != self._width:
            fields_found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise RowError(f"{fields_found} in {shortened(line)}", f"the header has {self._width}")
        fields.append("")
        return [fields[index] for index in self._indices]


def split(header: str) -> list[str]:
    """The names in the first line of a comma-separated file, in quotes or not."""
    return [name.strip() for name in _fields(header)]


def _fields(line: str) -> list[str]:
    return next(csv.reader((line,))) if '"' in line else line.split(",")


def joined(hint: str, more: str) -> str:
    """Two hints as one."""
    return f"{hint} {more[0].upper()}{more[1:]}" if hint.endswith("?") else f"{hint}; {more}"


def shortened(line: str) -> str:
    """A line as an error message quotes it."""
    return repr(line if len(line) <= 60 else f"{line[:57]}...")
