"""maitred: maitred's own plain trace, for samples and for workloads written by hand: CSV with a header.

The columns are `arrival_secs` (seconds, to the microsecond; only differences count), `class` (`system`, `interactive`,
`default` or `bulk`), `prompt_tokens` and `output_tokens`. Optional columns are `tenant`, as tenant policies name it
(`auth:acme`; empty: unknown), `max_output_tokens`, the limit that the client gave (empty: none), `stream` (`true` or `false`;
empty: true), `model`, `program` (the session or agent), and `slo_class` in BLIS's words. Of a program there may be
`think_secs`, the seconds from the end of its last request to this one (empty: unknown), and `continues`: `true` if the prompt
begins with the last prompt and the response to it, `false` if it begins anew (empty: unknown).

`maitred serve --record` writes such a file with more columns: the `outcome` of each request, `completed` or why not, and what
was measured of it (`Measured`), which only `maitred validate` reads. Requests that did not complete are counted and not
replayed, because the full length of their answers is unknown: `output_tokens` is empty. A row of a request that took very long
may stand 65,536 places behind its place in the order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Literal

import msgspec

from maitred.admission.tenants import tenant_problem
from maitred.core.errors import nearest_name_hint
from maitred.core.request import PriorityClass, Request
from maitred.core.units import SECOND, Micros
from maitred.workload.job import Job
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import ConversationKeys, GroupPrefixKeys
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
    split_header,
)
from maitred.workload.trace_writer import WRITERS, LostField, TraceWriter, csv_line

REQUIRED_COLUMNS = ("arrival_secs", "class", "prompt_tokens", "output_tokens")
OPTIONAL_COLUMNS = (
    *("tenant", "max_output_tokens", "stream", "model", "program", "slo_class"),
    *("think_secs", "continues", "outcome"),
)
ALL_COLUMNS = (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
MEASURED_COLUMNS = ("tokens_from", "cached_tokens", "backend", "sent_secs", "ttft_secs", "e2e_secs")
RECORDED_COLUMNS = (*ALL_COLUMNS, *MEASURED_COLUMNS)
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


@FORMATS.register("maitred")
class MaitredFormat(TraceFormat):
    description = "maitred's own CSV, written by hand or by maitred serve --record."
    times = "seconds"
    example = ",".join(REQUIRED_COLUMNS)
    max_disorder = 65_536
    has_think_times = True

    def recognises(self, first_line: str) -> bool:
        return set(REQUIRED_COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        columns = CsvColumns(next(lines), *REQUIRED_COLUMNS, optional=OPTIONAL_COLUMNS)
        contexts = _Contexts()

        def parse(line: str) -> TraceRow:
            arrival, label, prompt, answer, tenant, most, stream, model, program, slo, think, continues, outcome = (
                columns.fields(line)
            )
            if outcome not in ("", COMPLETED):
                raise NotReplayedError(f"a request that did not complete: {outcome}", "it is not replayed")
            prompt_tokens, output_tokens = parse_tokens(prompt, "prompt_tokens"), parse_tokens(answer, "output_tokens")
            # An empty `continues` says nothing of shared prefixes; `false` says that the prompt begins a new context.
            context = contexts.find_or_begin(program, _parse_flag(continues, "continues")) if continues.strip() else None
            return TraceRow(
                parse_seconds(arrival, "arrival_secs"),
                prompt_tokens,
                output_tokens,
                _parse_class(label),
                prefix=None if context is None else ConversationKeys(context, prompt_tokens),
                conversation_prefix=None if context is None else ConversationKeys(context, prompt_tokens + output_tokens),
                tenant=_parse_tenant(tenant),
                max_output_tokens=parse_tokens(most, "max_output_tokens") if most.strip() else None,
                stream=not stream.strip() or _parse_flag(stream, "stream"),
                model=model,
                program=program,
                slo_class=slo,
                think_time=parse_seconds(think, "think_secs") if think.strip() else None,
            )

        return parse


class _Contexts:
    """The numbers of the contexts that programs have now."""

    def __init__(self) -> None:
        self._numbers = count()
        self._by_program: dict[str, int] = {}

    def find_or_begin(self, program: str, continues: bool) -> int:
        """Return the number of the context of the next request of `program`."""
        if not program:
            return next(self._numbers)
        if not continues or program not in self._by_program:
            self._by_program[program] = next(self._numbers)
        return self._by_program[program]


@WRITERS.register("maitred")
class MaitredWriter(TraceWriter):
    """The CSV of maitred itself. A tenant that tenant policies cannot name is written as a header tenant: `acme` as
    `header:acme`."""

    companion_file = None

    def __init__(self) -> None:
        self.lost_fields: Counter[LostField] = Counter()

    def header(self, first_jobs: Sequence[Job]) -> str:
        return csv_line(ALL_COLUMNS)

    def row(self, job: Job) -> str:
        request = job.request
        self.lost_fields[LostField.PREFIX] += _shares_prefix(job)
        self.lost_fields[LostField.ID] += bool(request.client_id)
        self.lost_fields[LostField.DEADLINE] += request.deadline is not None
        self.lost_fields[LostField.TARGET] += request.slo_target is not None
        self.lost_fields[LostField.PRIORITY] += bool(request.priority)
        self.lost_fields[LostField.NAMESPACE] += bool(request.cache_namespace)
        return format_row(request, request.prompt_tokens, job.output_tokens, COMPLETED)


def _shares_prefix(job: Job) -> bool:
    """Return whether the prompt may share its prefix with others. A prompt without a group is known to be alone."""
    prefix = job.request.prefix
    return prefix is not None and not (
        isinstance(prefix, GroupPrefixKeys) and not prefix.shared_tokens and job.conversation_prefix is None
    )


def format_row(
    request: Request,
    prompt_tokens: int,
    output_tokens: int | None,
    outcome: str,
    think_time: Micros | None = None,
    continues: bool | None = None,
    measured: Measured | None = None,
) -> str:
    """Return a row with its newline: of `RECORDED_COLUMNS` if something was `measured`, else of `ALL_COLUMNS`."""
    most = request.max_output_tokens
    return csv_line(
        (
            _seconds(request.arrival),
            request.priority_class.label,
            prompt_tokens,
            "" if output_tokens is None else output_tokens,
            _tenant_field(request.tenant),
            "" if most is None or most < 1 else most,
            _FLAGS[request.stream],
            request.model,
            request.program,
            request.slo_class,
            _seconds(think_time),
            "" if continues is None else _FLAGS[continues],
            outcome,
            *(() if measured is None else _measured_fields(measured)),
        )
    )


def _measured_fields(measured: Measured) -> Sequence[object]:
    cached = "" if measured.cached_tokens is None else measured.cached_tokens
    times = map(_seconds, (measured.sent, measured.ttft, measured.e2e))
    return measured.tokens_from, cached, measured.backend, *times


@lru_cache(4096)
def _tenant_field(tenant: str) -> str:
    return f"header:{tenant.strip()}" if tenant and tenant_problem(tenant) else tenant


_FLAGS = {True: "true", False: "false"}


def _seconds(time: Micros | None) -> str:
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
