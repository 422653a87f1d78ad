"""One row of a trace, and the protocol of the formats it may come in.

Rows that are JSON objects, one per line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Protocol, TypeAlias, TypeVar

import msgspec

from maitred.core.error_text import describe_json_error
from maitred.core.errors import ConfigError, MaitredError
from maitred.core.registry import Registry
from maitred.core.request import PrefixKeys, PriorityClass, Request, RequestId
from maitred.core.units import Micros, from_seconds
from maitred.workload.job import Job
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.line_reader import LineReader
from maitred.workload.spec_parts import GoodputTargets


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """What a trace says about one request. What is not said here is as in `Request` and `Job`."""

    arrival: Micros
    """When it arrived, by the clock of the trace (`TraceFormat.time_origin`)."""
    prompt_tokens: int
    output_tokens: int
    priority_class: PriorityClass = PriorityClass.DEFAULT
    prefix: PrefixKeys | None = None
    conversation_prefix: PrefixKeys | None = None
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
    think_time: Micros | None = None
    """From the end of the request before it of its program to this one; None: the trace does not say."""
    parent_program: str = ""
    """The program out of which its own program was launched, where it is the first of it: when a request there had ended."""
    has_arrival: bool = True
    """Whether `at` is known. If not, it came `think` after the one before it, whenever that ended."""


def row_to_job(row: TraceRow, request_id: RequestId, arrival: Micros) -> Job:
    """The job that `row` becomes when it arrives at `arrival`."""
    request = Request(
        id=request_id,
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
        deadline=None if row.deadline is None else arrival + row.deadline - row.arrival,
        slo_class=row.slo_class,
        slo_target=row.slo_target,
        prefix=row.prefix,
    )
    return Job(request, row.output_tokens, row.conversation_prefix)


class RowError(MaitredError):
    """A row that cannot be used: what is wrong, and (`hint`) what would be right. The reader adds the place."""

    def __init__(self, what: str, hint: str) -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


class NotReplayedError(RowError):
    """A row that is as it should be and not to be replayed (a request that failed, say). It is counted, and no error."""


RowParser: TypeAlias = Callable[[str], TraceRow | Sequence[TraceRow | RowError]]
"""One line of the file: a row, or the rows of a session and what is wrong with others of it. Raises RowError."""


class TraceFormat(Protocol):
    """How the rows of one kind of trace file are written."""

    times: ClassVar[str] = "as it says"
    """In which unit, in a few words."""
    prompts_share: ClassVar[str] = "nothing known"
    """What it says of the beginnings that prompts have in common."""
    description: ClassVar[str] = ""
    """What it is, in a line."""
    example: ClassVar[str]
    """A file that users would recognise: its first line, or a row."""
    max_disorder: int = 0
    """By how many places a row may come later than in order of arrival: for what is written in another order."""
    is_grouped_by_session: ClassVar[bool] = False
    """Whether the rows of a session stand together, from the first to the last."""
    has_think_times: ClassVar[bool] = False
    """Whether rows may say how long the pause before them was (`TraceRow.think_time`)."""

    goodput_slo_targets: Mapping[str, GoodputTargets] = {}
    """What the file asks for its classes, once it has begun."""

    def recognises(self, first_line: str) -> bool:
        """Does a file that begins so look like this format? Formats must not claim each other's files."""
        ...

    def set_header_file(self, path: Path) -> None:
        """Its header is in the file `path`, before it begins. Raises ConfigError: it has none in a file of its own."""
        raise ConfigError("only a trace of BLIS has a header in a file of its own", hint="leave it out, or name it blis:FILE")

    def make_parser(self, lines: LineReader) -> RowParser:
        """Take what header there is off `lines`. Raises RowError if it is not what it should be."""
        ...

    def companion_files(self, path: Path) -> Sequence[Path]:
        """Other files that belong to a trace in the file `path`, if they are there."""
        return ()

    def time_origin(self, first_arrival: Micros) -> Micros:
        """Which instant of the trace's clock is time 0 of the workload, given that of its first row."""
        return first_arrival


FORMATS: Registry[TraceFormat] = Registry(
    "trace format",
    TraceFormat,
    group="maitred.trace_formats",
    packages=["maitred.workload.formats"],
    methods=["recognises", "make_parser"],
    flag="--trace",
    headings={"description": "what it is", "times": "times", "prompts_share": "prompts share"},
)


def parse_tokens(text: str, name: str) -> int:
    """A count of tokens in a text column called `name`. Raises RowError unless it is a whole number of at least 1.

    A request of 0 tokens in or out cannot be served, so such a row is a bad one (the published Azure and Mooncake traces
    have none).
    """
    count = _parse_whole_number(text, MAX_TOKENS)
    if not count:
        raise RowError(f"{name} is {text!r}", f"it must be a whole number of tokens from 1 to {MAX_TOKENS}")
    return count


_MAX_MICROS: Micros = 10**16
"""Three hundred years: clocks that count from 1970 fit."""


def parse_micros(text: str, name: str) -> Micros:
    """Whole microseconds in a text column called `name`, 0 if it is empty. Raises RowError unless they are 0 or more."""
    span = _parse_whole_number(text, _MAX_MICROS) if text else 0
    if span is None:
        raise RowError(f"{name} is {text!r}", f"it must be a whole number of microseconds from 0 to {_MAX_MICROS:.0e}")
    return span


_MAX_SECS = 1e10


def parse_seconds(text: str, name: str) -> Micros:
    """Seconds in a text column called `name`, to the nearest microsecond. Raises RowError unless they are 0 or more."""
    try:
        span = float(text)
    except ValueError:
        span = math.nan
    if not 0 <= span <= _MAX_SECS:
        raise RowError(f"{name} is {text!r}", "it must be a number of seconds, 0 or more")
    return from_seconds(span)


def parse_tokens_or_zero(text: str, name: str) -> int:
    """A count of tokens in a text column called `name`, 0 if it is empty. Raises RowError unless it is 0 or more."""
    count = _parse_whole_number(text, MAX_TOKENS) if text else 0
    if count is None:
        raise RowError(f"{name} is {text!r}", f"it must be a whole number of tokens from 0 to {MAX_TOKENS}")
    return count


def _parse_whole_number(text: str, most: int) -> int | None:
    digits = text.strip()
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 20):
        return None
    number = int(digits)
    return number if number <= most else None


class CsvColumns:
    """The columns of a comma-separated file by name, in whatever order its header has them. Others are ignored."""

    def __init__(self, header: str, *names: str, optional: Sequence[str] = ()) -> None:
        """Raises RowError if `header` lacks one of `names`, or has one of those that are read twice."""
        found = split_header(header)
        twice = next((name for name in (*names, *optional) if found.count(name) > 1), None)
        if twice is not None:
            raise RowError(f"the header has the column {twice} twice", "leave one of them out")
        missing = [name for name in names if name not in found]
        if missing:
            raise RowError(f"the header has no column {missing[0]}", f"the first line should be {','.join(names)}")
        self._width = len(found)
        nothing = self._width
        self._indices = [found.index(name) if name in found else nothing for name in (*names, *optional)]

    def fields(self, line: str) -> list[str]:
        """The fields of a row in the order of the names, the optional ones last and empty where the file has no such column.
        Raises RowError if it has more or fewer than the header."""
        fields = _split_csv(line)
        if len(fields) != self._width:
            fields_found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise RowError(f"{fields_found} in {quote_line(line)}", f"the header has {self._width}")
        fields.append("")
        return [fields[index] for index in self._indices]


def split_header(header: str) -> list[str]:
    """The names in the first line of a comma-separated file, in quotes or not."""
    return [name.strip() for name in _split_csv(header)]


def _split_csv(line: str) -> list[str]:
    return next(csv.reader((line,))) if '"' in line else line.split(",")


def join_hints(hint: str, more: str) -> str:
    """Two hints as one."""
    return f"{hint} {more[0].upper()}{more[1:]}" if hint.endswith("?") else f"{hint}; {more}"


def quote_line(line: str) -> str:
    """A line as an error message quotes it."""
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


Said = TypeVar("Said")

TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Millis: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def json_row_parser(
    kind: type[Said], example: str, row: Callable[[Said], TraceRow | Sequence[TraceRow | RowError]]
) -> RowParser:
    """A parser of lines that hold a `kind` each. Keys that `kind` does not name are ignored."""
    decode = msgspec.json.Decoder(kind).decode

    def parse(line: str) -> TraceRow | Sequence[TraceRow | RowError]:
        try:
            said = decode(line)
        except msgspec.DecodeError as error:
            raise RowError(describe_json_error(str(error)), f"a row looks like {example}") from error
        return row(said)

    return parse


def json_keys(line: str) -> set[str]:
    """The keys of an object; none if the line holds no object."""
    try:
        return set(_decode_object(line))
    except msgspec.DecodeError:
        return set()


def check_block_ids(ids: Sequence[int], prompt_tokens: int, block: int) -> None:
    """Raises RowError unless these are the blocks of a prompt; the last, partial one may be missing."""
    blocks = -(-prompt_tokens // block)
    if not prompt_tokens // block <= len(ids) <= blocks:
        raise RowError(f"{len(ids)} hash_ids for {prompt_tokens} tokens", f"they are {blocks} blocks of {block}")
