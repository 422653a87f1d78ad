"""The YAML header of a BLIS trace, which is a file beside its rows.

blis: TraceV2 of BLIS (inference-sim): CSV of 27 columns and a few optional ones, with a YAML header in a file beside it.

The rules are those of its `replay`. A request arrives at `send_time_us`, or where that is 0 at `arrival_time_us`. Its prompt
is `prefix_length` tokens that all of its `prefix_group` share, and `input_tokens` of its own after them; where a server said
how long the prompt was and there is no group, `server_input_tokens` holds instead. It asks for as many tokens as it got
(`output_tokens`), and `deadline_us` is an instant, 0 for none. Times are those of the trace and not counted from the first
row, unless its clock is one of 1970.

Where the header says `session_context_growth: accumulate`, `input_tokens` of a later round of a session is what is new in it,
and its prompt is all that was said before, and that. Such traces often stand session by session, each with a clock of its own,
so they are read to the end before the first request.

What only describes a past run (status, chunk times) and what a simulation has no use for (kinds of tokens) is not read. An
adapter separates prefix caches as it does in vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.slo_classes import priority_class_of
from maitred.core.units import SECOND, Micros
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import GroupPrefixKeys, group_number
from maitred.workload.spec_parts import GoodputTargets
from maitred.workload.trace_format import (
    FORMATS,
    CsvColumns,
    RowError,
    RowParser,
    TraceFormat,
    TraceRow,
    parse_micros,
    parse_tokens,
    parse_tokens_or_zero,
    split_header,
)


class BlisHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What of the YAML file beside the rows changes their meaning, or what is expected of who serves them."""

    trace_version: int = 2
    time_unit: str = "microseconds"
    session_context_growth: Literal["", "accumulate"] = ""
    goodput_slo_targets: Mapping[str, GoodputTargets] = {}


def header_path(path: Path) -> Path:
    """Where the header of the rows in `path` is if nobody says: NAME.yaml beside NAME.csv or NAME.csv.gz."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.with_suffix(".yaml")


def header_beside(rows: Path) -> BlisHeader:
    """The header beside the rows in this file; the usual one if none is there. Raises ConfigError as `read_header` does."""
    path = header_path(rows)
    return read_header(path) if path.is_file() else BlisHeader()


def read_header(path: Path) -> BlisHeader:
    """Raises ConfigError for one that cannot be read, or that we cannot follow."""
    import yaml

    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        header = msgspec.convert(yaml.load(text, Loader=yaml.CSafeLoader), BlisHeader)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError("this is no header of a BLIS trace", where=str(path), hint="trace_version: 2") from error
    if header.trace_version not in (2, 3):
        raise ConfigError(f"trace_version is {header.trace_version}", where=str(path), hint="versions 2 and 3 can be read")
    if header.time_unit not in ("microseconds", "us"):
        raise ConfigError(f"time_unit is {header.time_unit!r}", where=str(path), hint="it must be microseconds")
    return header


REQUIRED_COLUMNS = ("request_id", "input_tokens", "output_tokens", "arrival_time_us")
OPTIONAL_COLUMNS = (
    "tenant_id",
    "slo_class",
    "session_id",
    "prefix_group",
    "prefix_length",
    "streaming",
    "model",
    "deadline_us",
    "server_input_tokens",
    "send_time_us",
    "vllm_priority",
    "slo_target_us",
    "x_request_id",
    "adapter",
    "think_time_us",
)
WRITTEN_COLUMNS = (
    "request_id",
    "client_id",
    "tenant_id",
    "slo_class",
    "session_id",
    "round_index",
    "prefix_group",
    "prefix_length",
    "streaming",
    "input_tokens",
    "output_tokens",
    "text_tokens",
    "image_tokens",
    "audio_tokens",
    "video_tokens",
    "reason_ratio",
    "model",
    "deadline_us",
    "server_input_tokens",
    "arrival_time_us",
    "send_time_us",
    "first_chunk_time_us",
    "last_chunk_time_us",
    "num_chunks",
    "status",
    "error_message",
    "finish_reason",
)

_UNIX_CLOCK_FROM: Micros = 10 * 365 * 86_400 * SECOND
"""A trace that begins later than ten years after its origin has another one: a recorded one, by a clock of 1970."""


@FORMATS.register("blis")
class BlisFormat(TraceFormat):
    """Request ids are the trace's where they are whole numbers; otherwise rows are counted, and those become client ids."""

    description = "TraceV2 of BLIS (inference-sim); its header, NAME.yaml, may stand beside it."
    times = "µs"
    prompts_share = "`prefix_group`, and what was said before"
    example = "request_id,client_id,tenant_id,...,input_tokens,output_tokens,...,arrival_time_us,send_time_us,..."
    has_think_times = True
    max_disorder = 4_096
    """Recorded traces are written by request id, and requests are not sent exactly in that order."""

    def __init__(self) -> None:
        self._header: Path | None = None

    def set_header_file(self, path: Path) -> None:
        self._header = path

    def recognises(self, first_line: str) -> bool:
        return {*REQUIRED_COLUMNS, "prefix_group"} <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        header = header_beside(lines.path) if self._header is None else read_header(self._header)
        self.goodput_slo_targets = header.goodput_slo_targets
        accumulates = header.session_context_growth == "accumulate"
        if accumulates:
            self.max_disorder = sys.maxsize
        return _BlisReader(
            CsvColumns(next(lines), *REQUIRED_COLUMNS, optional=OPTIONAL_COLUMNS),
            _AccumulatedHistory() if accumulates else _NoHistory(),
        ).row

    def companion_files(self, path: Path) -> Sequence[Path]:
        return (header_path(path) if self._header is None else self._header,)

    def time_origin(self, first_arrival: Micros) -> Micros:
        return first_arrival if first_arrival > _UNIX_CLOCK_FROM else 0


class _SessionHistory(Protocol):
    """What prompts hold, row by row."""

    def before(self, session: str) -> GroupPrefixKeys | None:
        """All that was said in the session so far, answers included; None: nothing."""
        ...

    def append(self, session: str, whole: GroupPrefixKeys) -> None:
        """This much was said when a round of it had ended."""
        ...


class _NoHistory:
    """Each row says its whole prompt."""

    def before(self, session: str) -> GroupPrefixKeys | None:
        return None

    def append(self, session: str, whole: GroupPrefixKeys) -> None:
        pass


class _AccumulatedHistory:
    """Rows of a session say what is new in their prompts."""

    def __init__(self) -> None:
        self._said: dict[str, GroupPrefixKeys] = {}

    def before(self, session: str) -> GroupPrefixKeys | None:
        return self._said.get(session)

    def append(self, session: str, whole: GroupPrefixKeys) -> None:
        if session:
            self._said[session] = whole


class _BlisReader:
    def __init__(self, columns: CsvColumns, content: _SessionHistory) -> None:
        self._columns = columns
        self._content = content
        self._number = count()
        self._groups = _group_numbering()

    def row(self, line: str) -> TraceRow:
        name, suffix, answer, arrival, tenant, slo, session, group, length, *rest = self._columns.fields(line)
        streaming, model, deadline, server_input, sent, urgency, target, asked_as, adapter, think = rest
        before = self._content.before(session)
        shares = group and length not in ("", "0")
        own = parse_tokens_or_zero(suffix, "input_tokens") if before or shares else parse_tokens(suffix, "input_tokens")
        if not group:
            own = parse_tokens_or_zero(server_input, "server_input_tokens") or own
        output = parse_tokens(answer, "output_tokens")
        prefix = self._prefix(before, group, model, parse_tokens_or_zero(length, "prefix_length"), own)
        whole = replace(prefix, tokens=prefix.tokens + output)
        self._content.append(session, whole)
        numbered = name.isdecimal() and name.isascii()
        return TraceRow(
            parse_micros(sent, "send_time_us") or parse_micros(arrival, "arrival_time_us"),
            prefix.tokens,
            output,
            priority_class_of(slo),
            prefix,
            self._content.before(session) and whole,
            tenant=tenant,
            max_output_tokens=output,
            stream=_parse_streaming(streaming),
            id=int(name) if numbered else None,
            client_id=asked_as or ("" if numbered else name),
            model=model,
            program=session,
            cache_namespace=adapter,
            slo_class=slo,
            slo_target=parse_micros(target, "slo_target_us") or None,
            deadline=parse_micros(deadline, "deadline_us") or None,
            priority=_parse_vllm_priority(urgency),
            think_time=parse_micros(think, "think_time_us") if think else None,
        )

    def _prefix(self, before: GroupPrefixKeys | None, group: str, model: str, length: int, own: int) -> GroupPrefixKeys:
        if before:
            return replace(before, tokens=before.tokens + own)
        shared = length if group else 0
        return GroupPrefixKeys(self._groups(group, model), shared, next(self._number), shared + own)


def _group_numbering() -> Callable[[str, str], int]:
    last: tuple[str, str, int] = ("", "", 0)

    def of(group: str, model: str) -> int:
        nonlocal last
        if last[:2] != (group, model):
            last = (group, model, group_number(group, model) if group else 0)
        return last[2]

    return of


def _parse_streaming(text: str) -> bool:
    if text not in ("true", "false", ""):
        raise RowError(f"streaming is {text!r}", "it must be true or false")
    return text != "false"


def _parse_vllm_priority(text: str) -> float:
    """vLLM's priorities say the contrary of ours: smaller is more urgent."""
    try:
        return -float(text) if text else 0.0
    except ValueError as error:
        raise RowError(f"vllm_priority is {text!r}", "it must be a number") from error
