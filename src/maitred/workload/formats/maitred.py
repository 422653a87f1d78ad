"""maitred: our own plain trace, for samples and for whoever writes a workload by hand: CSV with a header.

`arrival_secs` (seconds, to the microsecond; only differences count), `class` (`system`, `interactive`, `default` or
`bulk`), `prompt_tokens`, `output_tokens`. And where they are known: `tenant`, as policies name it (`auth:acme`;
empty: nobody knows), `max_output_tokens`, what the client allowed (empty: it did not say), and `stream` (`true`, `false`;
empty: true).
"""

from __future__ import annotations

from maitred.admission.config import tenant_problem
from maitred.errors import nearest
from maitred.request import PriorityClass
from maitred.units import from_seconds
from maitred.workload.lines import Lines
from maitred.workload.row import FORMATS, Columns, Row, RowError, RowParser, TraceFormat, split, tokens

NAMES = ("arrival_secs", "class", "prompt_tokens", "output_tokens")
OPTIONAL = ("tenant", "max_output_tokens", "stream")

_LATEST_SECS = 1e10


@FORMATS.register("maitred")
class Maitred(TraceFormat):
    example = ",".join(NAMES)

    def recognises(self, first_line: str) -> bool:
        return set(NAMES) <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        columns = Columns(next(lines), *NAMES, optional=OPTIONAL)

        def parse(line: str) -> Row:
            arrival, label, prompt, answer, tenant, most, stream = columns.pick(line)
            return Row(
                from_seconds(_seconds(arrival)),
                tokens(prompt, "prompt_tokens"),
                tokens(answer, "output_tokens"),
                _class(label),
                tenant=_tenant(tenant),
                max_output_tokens=tokens(most, "max_output_tokens") if most.strip() else None,
                stream=_stream(stream),
            )

        return parse


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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds <= _LATEST_SECS:
        raise RowError(f"arrival_secs is {text!r}", "it must be a number of seconds, 0 or more")
    return seconds
