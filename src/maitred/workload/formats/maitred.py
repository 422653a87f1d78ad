"""maitred: maitred's own plain trace, for samples and for workloads written by hand: CSV with a header.

The columns are `arrival_secs` (seconds, to the microsecond; only differences count), `class` (`system`, `interactive`,
`default` or `bulk`), `prompt_tokens` and `output_tokens`. Optional columns are `tenant`, as tenant policies name it
(`auth:acme`; empty: unknown), `max_output_tokens`, the limit that the client gave (empty: none), `stream` (`true` or `false`;
empty: true), `model`, `program` (the session or agent), and `slo_class` in BLIS's words. Of a program there may be
`think_secs`, the seconds from the end of its last request to this one (empty: unknown), and `continues`: `true` if the prompt
begins with the last prompt and the response to it, `false` if it begins anew (empty: unknown). The first prompt of a program
with a `parent_program` may continue the conversation of that one. A prompt that is shorter than what it continues is the
beginning of it. That is no error, since in a recording of parallel requests the row above is not always the one that it
continues.

A written trace (`formats/writers.py`) has more columns where a request needs them (`EXTRA_COLUMNS`): `client_id`,
`parent_program`, `priority`, `routing_key`, `adapter` (the cache namespace), `deadline_secs` (from the arrival),
`slo_target_secs`, and what prompts share. The first `prefix_tokens` tokens are those of a `prefix_group`; or the content is
known in blocks of `block_tokens` tokens, whose chained ids are `block_ids` (`7 20..24` are 7 and 20 to 24), of the prompt and,
if later prompts contain it, of the response.

`maitred serve --record` writes such a file with more columns: the `outcome` of each request, `completed` or why not, and what
was measured of it (`Measured`), which only `maitred validate` reads. Requests that did not complete are counted and not
replayed, because the full length of their answers is unknown: `output_tokens` is empty. A row of a request that took very long
may stand 65,536 places behind its place in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import isfinite, nan
from typing import Literal

import msgspec

from maitred.admission.terms.tenants import tenant_problem
from maitred.core.errors import nearest_name_hint
from maitred.core.request import PrefixKeys, PriorityClass, Request
from maitred.core.units import SECOND, Micros
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import (
    NO_PIECES,
    ChainedBlockIds,
    PieceChain,
)
from maitred.workload.trace_format import (
    FORMATS,
    CsvColumns,
    NotReplayedError,
    RowError,
    RowParser,
    TraceFormat,
    TraceRow,
    parse_seconds,
    parse_tokens,
    parse_tokens_or_zero,
    split_header,
)
from maitred.workload.trace_writer import LostField, csv_line

REQUIRED_COLUMNS = ("arrival_secs", "class", "prompt_tokens", "output_tokens")
OPTIONAL_COLUMNS = (
    *("tenant", "max_output_tokens", "stream", "model", "program", "slo_class"),
    *("think_secs", "continues", "outcome"),
)
ALL_COLUMNS = (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
EXTRA_COLUMNS: Mapping[str, LostField] = {
    "client_id": LostField.ID,
    "parent_program": LostField.PARENT,
    "priority": LostField.PRIORITY,
    "routing_key": LostField.ROUTING_KEY,
    "adapter": LostField.NAMESPACE,
    "deadline_secs": LostField.DEADLINE,
    "slo_target_secs": LostField.TARGET,
    "prefix_group": LostField.PREFIX,
    "prefix_tokens": LostField.PREFIX,
    "block_tokens": LostField.PREFIX,
    "block_ids": LostField.PREFIX,
}
"""Columns that a written trace has if one of its first requests needs them, and what another request loses without them."""
MEASURED_COLUMNS = ("tokens_from", "cached_tokens", "backend", "sent_secs", "ttft_secs", "e2e_secs")
RECORDED_COLUMNS = (*ALL_COLUMNS, *MEASURED_COLUMNS, "request_id")
COMPLETED = "completed"


class Measured(msgspec.Struct, frozen=True):
    """What a gateway has measured of one request. Times are in µs from its arrival, and None if they are not known."""

    tokens_from: Literal["usage", "estimate"]
    """`usage` if the backend has reported every number of tokens in the row."""
    cached_tokens: int | None
    """Tokens of the prompt that the backend had in its prefix cache, or None if it does not report them."""
    backend: str
    """The URL of the last backend that it was sent to, or empty."""
    sent: Micros | None
    ttft: Micros | None
    """When the first data of the streamed answer came."""
    e2e: Micros
    """When the request ended, in whatever way."""
    request_id: str
    """The id of the request in its answer and in the logs of the gateway."""


@FORMATS.register("maitred")
class MaitredFormat(TraceFormat):
    description = "maitred's own CSV, written by hand or by maitred serve --record."
    times = "seconds"
    shared_prefixes = "where a column says so: `continues`, `prefix_group`, `block_ids`"
    prefix_columns = ("continues", "prefix_group", "block_ids")
    example = ",".join(REQUIRED_COLUMNS)
    max_disorder = 65_536
    has_think_times = True

    def recognises(self, first_line: str) -> bool:
        return set(REQUIRED_COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        extra = tuple(EXTRA_COLUMNS)
        columns = CsvColumns(next(lines), *REQUIRED_COLUMNS, optional=(*OPTIONAL_COLUMNS, *extra))
        contents = PromptContents()

        def parse(line: str) -> TraceRow:
            arrival, label, prompt, answer, tenant, most, stream, model, program, slo, think, continues, outcome, *rest = (
                columns.fields(line)
            )
            more = dict(zip(extra, rest, strict=True))
            if outcome not in ("", COMPLETED):
                raise NotReplayedError(f"a request that did not complete: {outcome}", "it is not replayed")
            prompt_tokens, output_tokens = parse_tokens(prompt, "prompt_tokens"), parse_tokens(answer, "output_tokens")
            # An empty `continues` says nothing of shared prefixes; `false` says that the prompt begins a new context.
            goes_on = _parse_flag(continues, "continues") if continues.strip() else None
            prefix, conversation = contents.of(prompt_tokens, output_tokens, program, goes_on, more)
            at = parse_seconds(arrival, "arrival_secs")
            return TraceRow(
                at,
                prompt_tokens,
                output_tokens,
                _parse_class(label),
                prefix=prefix,
                conversation_prefix=conversation,
                tenant=_parse_tenant(tenant),
                max_output_tokens=parse_tokens(most, "max_output_tokens") if most.strip() else None,
                stream=not stream.strip() or _parse_flag(stream, "stream"),
                client_id=more["client_id"],
                model=model,
                program=program,
                parent_program=more["parent_program"],
                routing_key=more["routing_key"],
                cache_namespace=more["adapter"],
                slo_class=slo,
                slo_target=_parse_span(more, "slo_target_secs"),
                deadline=None if (span := _parse_span(more, "deadline_secs")) is None else at + span,
                priority=_parse_priority(more["priority"]),
                think_time=parse_seconds(think, "think_secs") if think.strip() else None,
            )

        return parse


def _parse_span(fields: Mapping[str, str], name: str) -> Micros | None:
    return parse_seconds(fields[name], name) if fields[name].strip() else None


def _parse_priority(text: str) -> float:
    try:
        priority = float(text) if text.strip() else 0.0
    except ValueError:
        priority = nan
    if not isfinite(priority):
        raise RowError(f"priority is {text!r}", "it must be a number; larger is more urgent")
    return priority


class PromptContents:
    """The content of prompts, and the conversations that programs have now, as chains of pieces of text."""

    def __init__(self) -> None:
        self._own_numbers = count(1, 2)  # as those of generated prompts: even for what a group shares, odd for the rest
        self._groups: dict[str, int] = {}
        self._conversations: dict[str, PieceChain] = {}

    def of(
        self, prompt_tokens: int, output_tokens: int, program: str, continues: bool | None, fields: Mapping[str, str]
    ) -> tuple[PrefixKeys | None, PrefixKeys | None]:
        """Return the content of a prompt, and that of prompt and response if later prompts may contain them.

        Raises RowError for wrong columns.
        """
        if fields["block_ids"].strip():
            return _read_blocks(prompt_tokens, output_tokens, fields)
        shared = parse_tokens_or_zero(fields["prefix_tokens"], "prefix_tokens")
        if shared > prompt_tokens:
            raise RowError(f"prefix_tokens is {shared}", f"the prompt has {prompt_tokens} tokens")
        return self.continued(
            prompt_tokens,
            output_tokens,
            program,
            fields["parent_program"],
            continues,
            self._shared_prefix(fields["prefix_group"], shared),
        )

    def continued(
        self,
        prompt_tokens: int,
        output_tokens: int,
        program: str,
        parent_program: str,
        continues: bool | None,
        shared: PieceChain = NO_PIECES,
    ) -> tuple[PrefixKeys | None, PrefixKeys | None]:
        """Return the same of the next prompt of a program, which begins with what it continues, or else with `shared`."""
        if continues is None and shared is NO_PIECES:
            return None, None
        before = self._before(program, parent_program, continues)
        if before is None:
            before = shared.append(next(self._own_numbers), 0)
        elif program not in self._conversations:
            before = before.append(next(self._own_numbers), 0)
        prompt = before.resized(prompt_tokens)
        if continues is None:
            return prompt, None
        conversation = prompt.resized(prompt_tokens + output_tokens)
        if program:
            self._conversations[program] = conversation
        return prompt, conversation

    def _before(self, program: str, parent: str, continues: bool | None) -> PieceChain | None:
        """Return the conversation that the next prompt of `program` goes on with, or None if it begins anew."""
        if not (continues and program):
            return None
        return self._conversations.get(program) or self._conversations.get(parent)

    def _shared_prefix(self, group: str, tokens: int) -> PieceChain:
        if not tokens:
            return NO_PIECES
        return NO_PIECES.append(2 * self._groups.setdefault(group, len(self._groups)), tokens)


def _read_blocks(
    prompt_tokens: int, output_tokens: int, fields: Mapping[str, str]
) -> tuple[ChainedBlockIds, ChainedBlockIds | None]:
    size = parse_tokens(fields["block_tokens"], "block_tokens")
    most = -(-(prompt_tokens + output_tokens) // size)
    ids: list[int] = []
    for part in fields["block_ids"].split():
        ids.extend(_read_ids(part, most - len(ids)))
    if len(ids) < prompt_tokens // size:
        raise RowError(f"{len(ids)} block_ids for {prompt_tokens} tokens", f"they are {prompt_tokens // size} blocks of {size}")
    of_prompt = -(-prompt_tokens // size)
    prompt = ChainedBlockIds(ids[:of_prompt], prompt_tokens, size)
    if len(ids) <= of_prompt:
        return prompt, None
    return prompt, ChainedBlockIds(ids, min(prompt_tokens + output_tokens, len(ids) * size), size)


def _read_ids(part: str, most: int) -> range:
    first, dots, last = part.partition("..")
    try:
        ids = range(int(first), int(last if dots else first) + 1)
    except ValueError as error:
        raise RowError(f"block_ids has {part!r}", "ids are whole numbers, or FIRST..LAST") from error
    if not 0 < len(ids) <= most:
        raise RowError(f"block_ids has {part!r}", f"the prompt and its response have room for {most} more")
    return ids


def format_row(
    request: Request,
    prompt_tokens: int,
    output_tokens: int | None,
    outcome: str,
    think_time: Micros | None = None,
    continues: bool | None = None,
    measured: Measured | None = None,
    more: Iterable[object] = (),
) -> str:
    """Return a row with its newline: of `RECORDED_COLUMNS` if something was `measured`, else of `ALL_COLUMNS`, and `more`."""
    most = request.max_output_tokens
    return csv_line(
        (
            format_seconds(request.arrival),
            request.priority_class.label,
            prompt_tokens,
            "" if output_tokens is None else output_tokens,
            _tenant_field(request.tenant),
            "" if most is None or most < 1 else most,
            _FLAGS[request.stream],
            request.model,
            request.program,
            request.slo_class,
            format_seconds(think_time),
            "" if continues is None else _FLAGS[continues],
            outcome,
            *(() if measured is None else _measured_fields(measured)),
            *more,
        )
    )


def _measured_fields(measured: Measured) -> Sequence[object]:
    cached = "" if measured.cached_tokens is None else measured.cached_tokens
    times = map(format_seconds, (measured.sent, measured.ttft, measured.e2e))
    return measured.tokens_from, cached, measured.backend, *times, measured.request_id


@lru_cache(4096)
def _tenant_field(tenant: str) -> str:
    return f"header:{tenant.strip()}" if tenant and tenant_problem(tenant) else tenant


_FLAGS = {True: "true", False: "false"}


def format_seconds(time: Micros | None) -> str:
    return "" if time is None else f"{time // SECOND}.{time % SECOND:06d}"


def _parse_class(label: str) -> PriorityClass:
    found = PriorityClass.from_label(label)
    if found is None:
        raise RowError(f"unknown class {label!r}", nearest_name_hint(label, (cls.label for cls in PriorityClass)))
    return found


def _parse_tenant(text: str) -> str:
    tenant = text.strip()
    problem = tenant_problem(tenant) if tenant else None
    if problem:
        raise RowError(f"tenant {problem}", "empty, if the tenant is not known")
    return tenant


def _parse_flag(text: str, name: str) -> bool:
    flag = text.strip().lower()
    if flag not in ("true", "false"):
        raise RowError(f"{name} is {text!r}", "it must be true or false")
    return flag == "true"
