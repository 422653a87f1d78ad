"""blis: TraceV2 of BLIS (inference-sim): CSV of 27 columns and a few optional ones, with a YAML header in a file beside it.

The rules are those of BLIS's `replay`:

- A request arrives at `send_time_us`, or at `arrival_time_us` where `send_time_us` is 0. Times are those of the trace and do
  not count from the first row, unless its clock is one of 1970.
- The prompt is `prefix_length` tokens that all requests of the `prefix_group` share, followed by `input_tokens` of its own. If
  the server reported the prompt length and there is no group, `server_input_tokens` replaces `input_tokens`.
- The request asks for as many tokens as it got (`output_tokens`). `deadline_us` is an instant; 0 means none.
- With `session_context_growth: accumulate` in the header, the `input_tokens` of a later round are the new tokens, and the
  prompt is the history of the session followed by them. Such traces often stand session by session, each with a clock of its
  own, so they are read to the end before the first request.

Columns that only describe a past run (status, chunk times) and columns that a simulation has no use for (kinds of tokens) are
not read. An adapter separates prefix caches, as in vLLM, and is the routing key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import isfinite, nan
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError, describe_json_error, describe_os_error
from maitred.core.slo_classes import priority_class_of
from maitred.core.units import SECOND, Micros
from maitred.files import read_input
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

_REQUIRED_COLUMNS = ("request_id", "input_tokens", "output_tokens", "arrival_time_us")
_OPTIONAL_COLUMNS = (
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
"""Columns that are read if the file has them."""
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
"""BLIS's 27 columns, which a written trace always has."""

_UNIX_CLOCK_FROM: Micros = 10 * 365 * 86_400 * SECOND
"""A trace that begins later than ten years after its origin was recorded with a clock of 1970."""


class BlisHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the YAML file beside the rows that change the meaning of rows, or what counts as good."""

    trace_version: int = 2
    time_unit: str = "microseconds"
    session_context_growth: Literal["", "accumulate"] = ""
    goodput_slo_targets: Mapping[str, GoodputTargets] = {}


def header_path(path: Path) -> Path:
    """Return the default path of the header of the rows in `path`: NAME.yaml beside NAME.csv or NAME.csv.gz."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.with_suffix(".yaml")


def header_beside(rows: Path) -> BlisHeader:
    """Read the header beside the file `rows`, or return the default one if there is none. Raises ConfigError."""
    path = header_path(rows)
    return read_header(path) if path.is_file() else BlisHeader()


def read_header(path: Path) -> BlisHeader:
    """Read a header file. Raises ConfigError if it cannot be read, or has a version or a unit that is not supported."""
    header = _parse_header(path)
    if header.trace_version not in (2, 3):
        raise ConfigError(f"trace_version is {header.trace_version}", where=str(path), hint="versions 2 and 3 can be read")
    if header.time_unit not in ("microseconds", "us"):
        raise ConfigError(f"time_unit is {header.time_unit!r}", where=str(path), hint="it must be microseconds")
    return header


def _parse_header(path: Path) -> BlisHeader:
    import yaml

    try:
        text = read_input(path)
    except OSError as error:
        raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(path)) from error
    try:
        return msgspec.convert(yaml.load(text, Loader=yaml.CSafeLoader), BlisHeader)
    except yaml.YAMLError as error:
        raise ConfigError("this is no header of a BLIS trace", where=str(path), hint="trace_version: 2") from error
    except msgspec.ValidationError as error:
        what = f"this is no header of a BLIS trace: {describe_json_error(str(error))}"
        raise ConfigError(what, where=str(path), hint="trace_version: 2") from error


@FORMATS.register("blis")
class BlisFormat(TraceFormat):
    """Request ids are those of the trace if they are whole numbers; otherwise rows are counted and they become client ids."""

    description = "TraceV2 of BLIS (inference-sim), with its header NAME.yaml beside it, if there is one."
    times = "µs"
    shared_prefixes = "`prefix_group`, and the history of a session"
    example = "request_id,client_id,tenant_id,...,input_tokens,output_tokens,...,arrival_time_us,send_time_us,..."
    has_think_times = True
    max_disorder = 4_096
    """Recorded traces are written by request id, and requests are not sent exactly in that order."""

    def __init__(self) -> None:
        self._header: Path | None = None

    def set_header_file(self, path: Path) -> None:
        self._header = path

    def recognises(self, first_line: str) -> bool:
        return {*_REQUIRED_COLUMNS, "prefix_group"} <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        header = header_beside(lines.path) if self._header is None else read_header(self._header)
        self.goodput_slo_targets = header.goodput_slo_targets
        accumulates = header.session_context_growth == "accumulate"
        if accumulates:
            self.max_disorder = sys.maxsize
        columns = CsvColumns(next(lines), *_REQUIRED_COLUMNS, optional=_OPTIONAL_COLUMNS)
        return _BlisReader(columns, _SessionHistory(accumulates=accumulates)).row

    def companion_files(self, path: Path) -> Sequence[Path]:
        return (header_path(path) if self._header is None else self._header,)

    def time_origin(self, first_arrival: Micros) -> Micros:
        return first_arrival if first_arrival > _UNIX_CLOCK_FROM else 0


class _SessionHistory:
    """The content that prompts take over from earlier rounds: all of it where the rows of a session have the new tokens of
    their prompts only, and otherwise none, because every row has its whole prompt."""

    def __init__(self, *, accumulates: bool) -> None:
        self._accumulates = accumulates
        self._conversations: dict[str, GroupPrefixKeys] = {}

    def before(self, session: str) -> GroupPrefixKeys | None:
        """Return all prompts and answers of the session so far, or None if there are none."""
        return self._conversations.get(session)

    def append(self, session: str, conversation: GroupPrefixKeys) -> None:
        """Set all prompts and answers of the session after a round."""
        if self._accumulates and session:
            self._conversations[session] = conversation


class _BlisReader:
    def __init__(self, columns: CsvColumns, history: _SessionHistory) -> None:
        self._columns = columns
        self._history = history
        self._owners = count()
        self._group_number = _group_numbering()

    def row(self, line: str) -> TraceRow:
        name, own_text, answer, arrival, tenant, slo, session, group, shared, *rest = self._columns.fields(line)
        streaming, model, deadline, server_input, sent, vllm_priority, target, client_id, adapter, think_time = rest
        before = self._history.before(session)
        # Only a prompt that begins with tokens of its session or group may have none of its own.
        may_add_nothing = before or (group and shared not in ("", "0"))
        own = (parse_tokens_or_zero if may_add_nothing else parse_tokens)(own_text, "input_tokens")
        if not group:
            own = parse_tokens_or_zero(server_input, "server_input_tokens") or own
        output = parse_tokens(answer, "output_tokens")
        prefix = self._prefix(before, group, model, parse_tokens_or_zero(shared, "prefix_length"), own)
        conversation = replace(prefix, tokens=prefix.tokens + output)
        self._history.append(session, conversation)
        # After `append`: a history that accumulates has this round now, and the other kind has none, so that no later prompt is
        # taken to contain the answer.
        is_numbered = name.isdecimal() and name.isascii()
        return TraceRow(
            parse_micros(sent, "send_time_us") or parse_micros(arrival, "arrival_time_us"),
            prefix.tokens,
            output,
            priority_class_of(slo),
            prefix,
            self._history.before(session) and conversation,
            tenant=tenant,
            max_output_tokens=output,
            stream=_parse_streaming(streaming),
            id=int(name) if is_numbered else None,
            client_id=client_id or ("" if is_numbered else name),
            model=model,
            program=session,
            routing_key=adapter,
            cache_namespace=adapter,
            slo_class=slo,
            slo_target=parse_micros(target, "slo_target_us") or None,
            deadline=parse_micros(deadline, "deadline_us") or None,
            priority=_parse_vllm_priority(vllm_priority),
            think_time=parse_micros(think_time, "think_time_us") if think_time else None,
        )

    def _prefix(self, before: GroupPrefixKeys | None, group: str, model: str, shared: int, own: int) -> GroupPrefixKeys:
        if before:
            return replace(before, tokens=before.tokens + own)
        shared = shared if group else 0
        return GroupPrefixKeys(self._group_number(group, model), shared, next(self._owners), shared + own)


def _group_numbering() -> Callable[[str, str], int]:
    """Return a function from group and model to a number, which keeps the latest one: rows of a group often come together."""
    latest: tuple[str, str, int] = ("", "", 0)

    def number_of(group: str, model: str) -> int:
        nonlocal latest
        if latest[:2] != (group, model):
            latest = (group, model, group_number(group, model) if group else 0)
        return latest[2]

    return number_of


def _parse_streaming(text: str) -> bool:
    if text not in ("true", "false", ""):
        raise RowError(f"streaming is {text!r}", "it must be true or false")
    return text != "false"


def _parse_vllm_priority(text: str) -> float:
    """Return the priority. For vLLM smaller is more urgent, in `Request` larger."""
    try:
        priority = float(text) if text else 0.0
    except ValueError:
        priority = nan
    if not isfinite(priority):
        raise RowError(f"vllm_priority is {text!r}", "it must be a number")
    return -priority if priority else 0.0
