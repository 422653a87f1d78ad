"""blis: TraceV2 of BLIS (inference-sim): CSV of 27 columns and a few optional ones, with a YAML header in a file beside it.

The rules are those of its `replay`. A request arrives at `send_time_us`, or where that is 0 at `arrival_time_us`. Its prompt
is `prefix_length` tokens that all of its `prefix_group` share, and `input_tokens` of its own after them; where a server said
how long the prompt was and there is no group, `server_input_tokens` holds instead. It asks for as many tokens as it got
(`output_tokens`), and `deadline_us` is an instant, 0 for none. Times are those of the trace and not counted from the first
row, unless its clock is one of 1970.

What only describes a past run (status, chunk times) and what a simulation has no use for (kinds of tokens) is not read. An
adapter separates prefix caches as it does in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec

from maitred.errors import ConfigError
from maitred.slo_classes import class_of
from maitred.units import SECOND, Micros
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


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What of the YAML file beside the rows changes their meaning."""

    trace_version: int = 2
    time_unit: str = "microseconds"


@FORMATS.register("blis")
class Blis(TraceFormat):
    """Request ids are the trace's where they are whole numbers; otherwise rows are counted, and those become client ids."""

    about = "TraceV2 of BLIS (inference-sim); its header, NAME.yaml, may stand beside it."
    example = "request_id,client_id,tenant_id,...,input_tokens,output_tokens,...,arrival_time_us,send_time_us,..."
    thinks = True
    disorder = 4_096
    """Recorded traces are written by request id, and requests are not sent exactly in that order."""

    def recognises(self, first_line: str) -> bool:
        return {*REQUIRED, "prefix_group"} <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        _check(header_path(lines.path))
        return _parser(Columns(next(lines), *REQUIRED, optional=READ))

    def origin(self, first: Micros) -> Micros:
        return first if first > _CLOCK_OF_1970 else 0


def header_path(path: Path) -> Path:
    """Where the header of the rows in `path` is: NAME.yaml beside NAME.csv or NAME.csv.gz."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.with_suffix(".yaml")


def _check(path: Path) -> None:
    if not path.is_file():
        return
    import yaml

    try:
        header = msgspec.convert(yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader), Header)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError("this is no header of a BLIS trace", where=str(path), hint="trace_version: 2") from error
    if header.trace_version != 2:
        raise ConfigError(f"trace_version is {header.trace_version}", where=str(path), hint="only version 2 can be read")
    if header.time_unit not in ("microseconds", "us"):
        raise ConfigError(f"time_unit is {header.time_unit!r}", where=str(path), hint="it must be microseconds")


def _parser(columns: Columns) -> RowParser:
    number, groups = count(), _groups()

    def parse(line: str) -> Row:
        name, suffix, answer, arrival, tenant, slo, session, group, prefix, *rest = columns.pick(line)
        streaming, model, deadline, server_input, sent, urgency, target, asked_as, adapter, think = rest
        shared = at_least_0(prefix, "prefix_length") if group else 0
        own = tokens(suffix, "input_tokens") if not shared else at_least_0(suffix, "input_tokens")
        if not group:
            own = at_least_0(server_input, "server_input_tokens") or own
        output = tokens(answer, "output_tokens")
        numbered = name.isdecimal() and name.isascii()
        return Row(
            micros(sent, "send_time_us") or micros(arrival, "arrival_time_us"),
            shared + own,
            output,
            class_of(slo),
            GroupPrefix(groups(group, model), shared, next(number), shared + own),
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

    return parse


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
