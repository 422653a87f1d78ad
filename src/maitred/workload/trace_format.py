"""Trace formats: the protocol of a format, the row that a format reads, and helpers for CSV and JSON lines.

A format is a class in a module of `maitred.workload.formats`, registered under the prefix that users type (`azure:FILE`). It
recognises its files by their first line, and makes a parser that turns each further line into a `TraceRow`, or into the rows of
a session. For a file without a prefix, `_detect_format` (in `workload/trace.py`) takes the one format that recognises its first
line. The reader (`trace`) adds the place in the file to errors, sorts the rows and makes jobs of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final, Protocol, TypeAlias, TypeVar

import msgspec

from maitred.core.errors import JSON_ERRORS, ConfigError, MaitredError, describe_json_error, quote
from maitred.core.registry import Registry
from maitred.core.request import PrefixKeys, PriorityClass, Request, RequestId
from maitred.core.units import Micros, from_seconds
from maitred.workload.job import Job
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.line_reader import LineReader
from maitred.workload.spec_parts import GoodputTargets

UNKNOWN_PREFIXES: Final = "unknown"
"""The word of a format that does not say what its prompts have in common."""


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """The facts that a trace has about one request. Fields without a docstring are those of `Request` and `Job`."""

    arrival: Micros
    """µs on the clock of the trace (`TraceFormat.time_origin`)."""
    prompt_tokens: int
    output_tokens: int
    priority_class: PriorityClass = PriorityClass.DEFAULT
    prefix: PrefixKeys | None = None
    conversation_prefix: PrefixKeys | None = None
    tenant: str = ""
    max_output_tokens: int | None = None
    """The limit that the client gave."""
    stream: bool = True
    id: int | None = None
    """The number of the request, unique in the trace, or None if the trace has no numbers and the reader counts the rows."""
    client_id: str = ""
    model: str = ""
    program: str = ""
    routing_key: str = ""
    cache_namespace: str = ""
    slo_class: str = ""
    slo_target: Micros | None = None
    deadline: Micros | None = None
    """µs on the clock of the trace."""
    priority: float = 0.0
    think_time: Micros | None = None
    """µs from the end of the previous request of the program to this one, or None if the trace does not say."""
    parent_program: str = ""
    """In the first row of a sub-agent: the program that launched it, after one of its requests had ended."""
    has_arrival: bool = True
    """Whether `arrival` is known. If not, the request came `think_time` after the end of the previous one."""


def row_to_job(row: TraceRow, request_id: RequestId, arrival: Micros) -> Job:
    """Return the job that `row` becomes when it arrives at `arrival` on the clock of the workload."""
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
        parent_program=row.parent_program,
        stream=row.stream,
        priority=row.priority,
        routing_key=row.routing_key,
        cache_namespace=row.cache_namespace,
        deadline=None if row.deadline is None else arrival + row.deadline - row.arrival,
        slo_class=row.slo_class,
        slo_target=row.slo_target,
        prefix=row.prefix,
    )
    return Job(request, row.output_tokens, row.conversation_prefix, row.think_time)


class RowError(MaitredError):
    """A row that cannot be used. The reader adds the place in the file."""

    def __init__(self, problem: str, hint: str) -> None:
        """`hint` says what would be right."""
        self.problem, self.hint = problem, hint
        super().__init__(problem)


class NotReplayedError(RowError):
    """A correct row that is not replayed, such as a request that failed. The reader counts it; it does not end the run."""


RowParser: TypeAlias = Callable[[str], TraceRow | Sequence[TraceRow | RowError]]
"""A function from a line to its row, or to the rows of a session and the errors of others of it. Raises RowError."""


class TraceFormat(Protocol):
    """The way the rows of one kind of trace file are written. A format must have `example`, `recognises` and `make_parser`."""

    description: ClassVar[str] = ""
    """The format in one line, for `maitred formats`."""
    times: ClassVar[str] = "unknown"
    """The unit of times, in a few words, for the documentation."""
    shared_prefixes: ClassVar[str] = UNKNOWN_PREFIXES
    """How the format names the prefixes that prompts share, in a few words, for the documentation."""
    prefix_columns: ClassVar[Sequence[str]] = ()
    """Columns of which a file must have one to say what prompts share, or none if every file of this format says it."""
    example: ClassVar[str]
    """A line that users recognise: the header or a row."""
    max_disorder: int = 0
    """By how many places a row may stand behind its place in the order of arrival."""
    is_grouped_by_session: ClassVar[bool] = False
    """Whether the rows of a session stand together, from the first to the last."""
    has_think_times: ClassVar[bool] = False
    """Whether rows may have a `think_time`."""

    goodput_slo_targets: Mapping[str, GoodputTargets] = {}
    """Targets by SLO class that the file has, once `make_parser` has been called."""

    def recognises(self, first_line: str) -> bool:
        """Return whether a file with this first line has this format. At most one format may recognise a file."""
        ...

    def knows_prompts(self, first_line: str) -> bool:
        """Return whether a file with this first line can say what prompts have in common."""
        columns = self.prefix_columns
        return self.shared_prefixes != UNKNOWN_PREFIXES and (
            not columns or not set(columns).isdisjoint(split_header(first_line))
        )

    def set_header_file(self, path: Path) -> None:
        """Read the header from the file `path`. Called before `make_parser`. Raises ConfigError for formats without one."""
        raise ConfigError("only a trace of BLIS has a header in a file of its own", hint="leave it out, or name it blis:FILE")

    def make_parser(self, lines: LineReader) -> RowParser:
        """Take the header, if there is one, off `lines` and return the parser of the lines after it. Raises RowError for a
        wrong header."""
        ...

    def companion_files(self, path: Path) -> Sequence[Path]:
        """Return the files that belong to the trace in the file `path`, whether or not they exist."""
        return ()

    def time_origin(self, first_arrival: Micros) -> Micros:
        """Return the instant of the trace's clock that is time 0 of the workload, given that of the first row."""
        return first_arrival


FORMATS: Registry[TraceFormat] = Registry(
    "trace format",
    TraceFormat,
    group="maitred.trace_formats",
    packages=["maitred.workload.formats"],
    methods=["recognises", "make_parser"],
    flag="--trace",
    headings={"description": "contents", "times": "times", "shared_prefixes": "shared prefixes"},
)


def join_hints(hint: str, more: str) -> str:
    """Return two hints as one."""
    return f"{hint} {more[0].upper()}{more[1:]}" if hint.endswith("?") else f"{hint}; {more}"


def parse_tokens(text: str, name: str) -> int:
    """Return the number of tokens in the column `name`. Raises RowError unless it is a whole number of at least 1.

    A request with 0 prompt or output tokens cannot be served, so its row is a bad one. The published Azure and Mooncake traces
    have none.
    """
    count = _parse_whole_number(text, MAX_TOKENS)
    if not count:
        raise RowError(f"{name} is {quote(text)}", f"it must be a whole number of tokens from 1 to {MAX_TOKENS}")
    return count


def parse_tokens_or_zero(text: str, name: str) -> int:
    """Return the number of tokens in the column `name`, or 0 if it is empty. Raises RowError unless it is 0 or more."""
    count = _parse_whole_number(text, MAX_TOKENS) if text else 0
    if count is None:
        raise RowError(f"{name} is {quote(text)}", f"it must be a whole number of tokens from 0 to {MAX_TOKENS}")
    return count


_MAX_MICROS: Micros = 10**16
"""About three hundred years, so that clocks that count from 1970 fit."""


def parse_micros(text: str, name: str) -> Micros:
    """Return the microseconds in the column `name`, or 0 if it is empty. Raises RowError unless it is a whole number."""
    span = _parse_whole_number(text, _MAX_MICROS) if text else 0
    if span is None:
        raise RowError(f"{name} is {quote(text)}", f"it must be a whole number of microseconds from 0 to {_MAX_MICROS:.0e}")
    return span


_MAX_SECS = 1e10


def parse_seconds(text: str, name: str) -> Micros:
    """Return the seconds in the column `name`, rounded to microseconds. Raises RowError unless they are 0 or more."""
    try:
        span = float(text)
    except ValueError:
        span = math.nan
    if not 0 <= span <= _MAX_SECS:
        raise RowError(f"{name} is {quote(text)}", "it must be a number of seconds, 0 or more")
    return from_seconds(span)


def _parse_whole_number(text: str, most: int) -> int | None:
    digits = text.strip()
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 20):
        return None
    number = int(digits)
    return number if number <= most else None


class CsvColumns:
    """The columns of a comma-separated file by name, in any order. Columns without a name here are ignored."""

    def __init__(self, header: str, *names: str, optional: Sequence[str] = ()) -> None:
        """Raise RowError if `header` lacks one of `names`, or has one of `names` or `optional` twice."""
        found = split_header(header)
        twice = next((name for name in (*names, *optional) if found.count(name) > 1), None)
        if twice is not None:
            raise RowError(f"the header has the column {twice} twice", "leave one of them out")
        missing = [name for name in names if name not in found]
        if missing:
            raise RowError(f"the header has no column {missing[0]}", f"the first line should be {','.join(names)}")
        self._width = len(found)
        # `fields` appends an empty field, which stands in for all optional columns that the file does not have.
        absent = self._width
        self._indices = [found.index(name) if name in found else absent for name in (*names, *optional)]

    def fields(self, line: str) -> list[str]:
        """Return the fields of a row in the order of the names, with the optional ones last; empty if the file has no such
        column. Raises RowError if the row has more or fewer fields than the header."""
        fields = _split_csv(line)
        if len(fields) != self._width:
            fields_found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise RowError(f"{fields_found} in {quote(line)}", f"the header has {self._width}")
        fields.append("")
        return [fields[index] for index in self._indices]


def split_header(header: str) -> list[str]:
    """Return the column names in the first line of a comma-separated file, or none if it is no such line."""
    try:
        return [name.strip() for name in _split_csv(header)]
    except RowError:
        return []


def _split_csv(line: str) -> list[str]:
    """Return the fields of a line. Raises RowError for a field beyond 128 KiB, such as that of a quote without an end."""
    try:
        return next(csv.reader((line,))) if '"' in line else line.split(",")
    except csv.Error as error:
        raise RowError(f"no CSV: {quote(line)}", "is a quote not closed?") from error


LineStruct = TypeVar("LineStruct")

TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Millis: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
MAX_SECS: Final = 1e12
"""The latest time of a row in JSON lines: clocks that count from 1970 fit, also in ms."""
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECS)]

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def json_row_parser(
    kind: type[LineStruct], example: str, to_row: Callable[[LineStruct], TraceRow | Sequence[TraceRow | RowError]]
) -> RowParser:
    """Return a parser of lines that each hold a JSON object of the type `kind`. Keys that `kind` does not have are ignored."""
    decode = msgspec.json.Decoder(kind).decode

    def parse(line: str) -> TraceRow | Sequence[TraceRow | RowError]:
        try:
            decoded = decode(line)
        except JSON_ERRORS as error:
            raise RowError(describe_json_error(str(error)), f"a row looks like {example}") from error
        return to_row(decoded)

    return parse


def json_keys(line: str) -> set[str]:
    """Return the keys of the JSON object in the line, or none if it holds no object."""
    try:
        return set(_decode_object(line))
    except JSON_ERRORS:
        return set()


def check_block_ids(ids: Sequence[int], prompt_tokens: int, block_tokens: int) -> None:
    """Raise RowError unless there is one id for each block of the prompt. The last, partial block may lack its id."""
    blocks = -(-prompt_tokens // block_tokens)
    if not prompt_tokens // block_tokens <= len(ids) <= blocks:
        raise RowError(f"{len(ids)} hash_ids for {prompt_tokens} tokens", f"they are {blocks} blocks of {block_tokens}")
