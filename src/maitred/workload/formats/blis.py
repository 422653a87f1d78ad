"""blis: TraceV2 of BLIS (inference-sim): CSV of 27 columns and a few optional ones, with a YAML header in a file beside it.

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
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from maitred.slo_classes import class_of
from maitred.units import SECOND, Micros
from maitred.workload.formats.blis_header import header_of, header_path, read_header
from maitred.workload.lines import Lines
from maitred.workload.prefix import GroupPrefix, group_number
from maitred.workload.row import FORMATS, Columns, Row, RowError, RowParser, TraceFormat, at_least_0, micros, split, tokens

REQUIRED = ("request_id", "input_tokens", "output_tokens", "arrival_time_us")
READ = (
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
COLUMNS = (
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

_CLOCK_OF_1970: Micros = 10 * 365 * 86_400 * SECOND
"""A trace that begins later than ten years after its origin has another one: a recorded one, by a clock of 1970."""


@FORMATS.register("blis")
class Blis(TraceFormat):
    """Request ids are the trace's where they are whole numbers; otherwise rows are counted, and those become client ids."""

    about = "TraceV2 of BLIS (inference-sim); its header, NAME.yaml, may stand beside it."
    example = "request_id,client_id,tenant_id,...,input_tokens,output_tokens,...,arrival_time_us,send_time_us,..."
    thinks = True
    disorder = 4_096
    """Recorded traces are written by request id, and requests are not sent exactly in that order."""

    def __init__(self) -> None:
        self._header: Path | None = None

    def with_header(self, path: Path) -> None:
        self._header = path

    def recognises(self, first_line: str) -> bool:
        return {*REQUIRED, "prefix_group"} <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        header = header_of(lines.path) if self._header is None else read_header(self._header)
        self.goodput_slo_targets = header.goodput_slo_targets
        accumulates = header.session_context_growth == "accumulate"
        if accumulates:
            self.disorder = sys.maxsize
        return _Reader(Columns(next(lines), *REQUIRED, optional=READ), _Grown() if accumulates else _Fresh()).row

    def beside(self, path: Path) -> Sequence[Path]:
        return (header_path(path) if self._header is None else self._header,)

    def origin(self, first: Micros) -> Micros:
        return first if first > _CLOCK_OF_1970 else 0


class _Content(Protocol):
    """What prompts hold, row by row."""

    def said(self, session: str) -> GroupPrefix | None:
        """All that was said in the session so far, answers included; None: nothing."""
        ...

    def goes_on(self, session: str, whole: GroupPrefix) -> None:
        """This much was said when a round of it had ended."""
        ...


class _Fresh:
    """Each row says its whole prompt."""

    def said(self, session: str) -> GroupPrefix | None:
        return None

    def goes_on(self, session: str, whole: GroupPrefix) -> None:
        pass


class _Grown:
    """Rows of a session say what is new in their prompts."""

    def __init__(self) -> None:
        self._said: dict[str, GroupPrefix] = {}

    def said(self, session: str) -> GroupPrefix | None:
        return self._said.get(session)

    def goes_on(self, session: str, whole: GroupPrefix) -> None:
        if session:
            self._said[session] = whole


class _Reader:
    def __init__(self, columns: Columns, content: _Content) -> None:
        self._columns = columns
        self._content = content
        self._number = count()
        self._groups = _groups()

    def row(self, line: str) -> Row:
        name, suffix, answer, arrival, tenant, slo, session, group, length, *rest = self._columns.pick(line)
        streaming, model, deadline, server_input, sent, urgency, target, asked_as, adapter, think = rest
        before = self._content.said(session)
        shares = group and length not in ("", "0")
        own = at_least_0(suffix, "input_tokens") if before or shares else tokens(suffix, "input_tokens")
        if not group:
            own = at_least_0(server_input, "server_input_tokens") or own
        output = tokens(answer, "output_tokens")
        prefix = self._prefix(before, group, model, at_least_0(length, "prefix_length"), own)
        whole = replace(prefix, tokens=prefix.tokens + output)
        self._content.goes_on(session, whole)
        numbered = name.isdecimal() and name.isascii()
        return Row(
            micros(sent, "send_time_us") or micros(arrival, "arrival_time_us"),
            prefix.tokens,
            output,
            class_of(slo),
            prefix,
            self._content.said(session) and whole,
            tenant=tenant,
            max_output_tokens=output,
            stream=_flag(streaming),
            id=int(name) if numbered else None,
            client_id=asked_as or ("" if numbered else name),
            model=model,
            program=session,
            cache_namespace=adapter,
            slo_class=slo,
            slo_target=micros(target, "slo_target_us") or None,
            deadline=micros(deadline, "deadline_us") or None,
            priority=_urgency(urgency),
            think=micros(think, "think_time_us") if think else None,
        )

    def _prefix(self, before: GroupPrefix | None, group: str, model: str, length: int, own: int) -> GroupPrefix:
        if before:
            return replace(before, tokens=before.tokens + own)
        shared = length if group else 0
        return GroupPrefix(self._groups(group, model), shared, next(self._number), shared + own)


def _groups() -> Callable[[str, str], int]:
    last: tuple[str, str, int] = ("", "", 0)

    def of(group: str, model: str) -> int:
        nonlocal last
        if last[:2] != (group, model):
            last = (group, model, group_number(group, model) if group else 0)
        return last[2]

    return of


def _flag(text: str) -> bool:
    if text not in ("true", "false", ""):
        raise RowError(f"streaming is {text!r}", "it must be true or false")
    return text != "false"


def _urgency(text: str) -> float:
    """vLLM's priorities say the contrary of ours: smaller is more urgent."""
    try:
        return -float(text) if text else 0.0
    except ValueError as error:
        raise RowError(f"vllm_priority is {text!r}", "it must be a number") from error
