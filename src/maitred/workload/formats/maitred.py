"""maitred: our own plain trace, for samples and for whoever writes a workload by hand: CSV with a header.

`arrival_secs` (seconds, to the microsecond; only differences count), `class` (`system`, `interactive`, `default` or
`bulk`), `prompt_tokens`, `output_tokens`. And where they are known: `tenant`, as policies name it (`auth:acme`;
empty: nobody knows), `max_output_tokens`, what the client allowed (empty: it did not say), `stream` (`true`, `false`;
empty: true), `model`, `program` (the session or agent that it belongs to) and `slo_class`, in BLIS's words.

`maitred serve --record` writes such a file, with the `outcome` of each request besides: `completed`, or why not. Those that
did not complete are not replayed, for nobody knows how long their answers would have been; they are counted. Its rows are
written as requests end, so they may stand 65,536 places behind where their arrival belongs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from maitred.admission.tenant_names import tenant_problem
from maitred.errors import nearest
from maitred.request import PriorityClass, Request
from maitred.units import SECOND
from maitred.workload.job import Job
from maitred.workload.lines import Lines
from maitred.workload.prefix import GroupPrefix
from maitred.workload.row import (
    FORMATS,
    Columns,
    NotReplayedError,
    Row,
    RowError,
    RowParser,
    TraceFormat,
    seconds,
    split,
    tokens,
)
from maitred.workload.writing import WRITERS, Lost, TraceWriter, csv_line

NAMES = ("arrival_secs", "class", "prompt_tokens", "output_tokens")
OPTIONAL = ("tenant", "max_output_tokens", "stream", "model", "program", "slo_class", "outcome")
COMPLETED = "completed"


@FORMATS.register("maitred")
class Maitred(TraceFormat):
    about = "Our own: what maitred serve --record writes, or you by hand."
    example = ",".join(NAMES)
    disorder = 65_536

    def recognises(self, first_line: str) -> bool:
        return set(NAMES) <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        columns = Columns(next(lines), *NAMES, optional=OPTIONAL)

        def parse(line: str) -> Row:
            arrival, label, prompt, answer, tenant, most, stream, model, program, slo, outcome = columns.pick(line)
            if outcome not in ("", COMPLETED):
                raise NotReplayedError(f"a request that did not complete: {outcome}", "it is not replayed")
            return Row(
                seconds(arrival, "arrival_secs"),
                tokens(prompt, "prompt_tokens"),
                tokens(answer, "output_tokens"),
                _class(label),
                tenant=_tenant(tenant),
                max_output_tokens=tokens(most, "max_output_tokens") if most.strip() else None,
                stream=_stream(stream),
                model=model,
                program=program,
                slo_class=slo,
            )

        return parse


@WRITERS.register("maitred")
class MaitredWriter(TraceWriter):
    """A tenant that our policies cannot name is named as if a header had: `acme` as `header:acme`."""

    companion = None

    def __init__(self) -> None:
        self.lost: Counter[Lost] = Counter()

    def begin(self, first: Sequence[Job]) -> str:
        return csv_line(HEADER)

    def row(self, job: Job) -> str:
        request = job.request
        self.lost[Lost.PREFIX] += _shares(job)
        self.lost[Lost.ID] += bool(request.client_id)
        self.lost[Lost.DEADLINE] += request.deadline is not None
        self.lost[Lost.TARGET] += request.slo_target is not None
        self.lost[Lost.PRIORITY] += bool(request.priority)
        self.lost[Lost.NAMESPACE] += bool(request.cache_namespace)
        return row_of(request, request.prompt_tokens, job.output_tokens, COMPLETED)


def _shares(job: Job) -> bool:
    """Whether it is known of its prompt that others begin like it; a member of no group is known to be alone."""
    prefix = job.request.prefix
    return prefix is not None and not (isinstance(prefix, GroupPrefix) and not prefix.shared and job.whole is None)


HEADER = (*NAMES, *OPTIONAL)


def row_of(request: Request, prompt_tokens: int, output_tokens: int, outcome: str) -> str:
    """A row, with its newline."""
    tenant, most = request.tenant, request.max_output_tokens
    return csv_line(
        (
            f"{request.arrival // SECOND}.{request.arrival % SECOND:06d}",
            request.priority_class.label,
            prompt_tokens,
            output_tokens,
            f"header:{tenant.strip()}" if tenant and tenant_problem(tenant) else tenant,
            "" if most is None or most < 1 else most,
            "true" if request.stream else "false",
            request.model,
            request.program,
            request.slo_class,
            outcome,
        )
    )


def _class(label: str) -> PriorityClass:
    found = PriorityClass.of(label)
    if found is None:
        raise RowError(f"unknown class {label!r}", nearest(label, (cls.label for cls in PriorityClass)))
    return found


def _tenant(text: str) -> str:
    tenant = text.strip()
    problem = tenant_problem(tenant) if tenant else None
    if problem:
        raise RowError(f"tenant {problem}", "empty: nobody knows who it was")
    return tenant


def _stream(text: str) -> bool:
    said = text.strip().lower()
    if said not in ("", "true", "false"):
        raise RowError(f"stream is {text!r}", "it must be true or false")
    return said != "false"
