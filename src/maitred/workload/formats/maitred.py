"""maitred: our own plain trace, for samples and for whoever writes a workload by hand: CSV with a header.

`arrival_secs` (seconds, to the microsecond; only differences count), `class` (`system`, `interactive`, `default` or
`bulk`), `prompt_tokens`, `output_tokens`.
"""

from __future__ import annotations

from maitred.errors import nearest
from maitred.request import PriorityClass
from maitred.units import from_seconds
from maitred.workload.lines import Lines
from maitred.workload.row import FORMATS, Columns, Row, RowError, RowParser, TraceFormat, split, tokens

NAMES = ("arrival_secs", "class", "prompt_tokens", "output_tokens")

_LATEST_SECS = 1e10


@FORMATS.register("maitred")
class Maitred(TraceFormat):
    example = ",".join(NAMES)

    def recognises(self, first_line: str) -> bool:
        return set(NAMES) <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        columns = Columns(next(lines), *NAMES)

        def parse(line: str) -> Row:
            arrival, label, prompt, answer = columns.pick(line)
            return Row(
                from_seconds(_seconds(arrival)),
                tokens(prompt, "prompt_tokens"),
                tokens(answer, "output_tokens"),
                _class(label),
            )

        return parse


def _class(label: str) -> PriorityClass:
    found = PriorityClass.of(label)
    if found is None:
        raise RowError(f"unknown class {label!r}", nearest(label, (cls.label for cls in PriorityClass)))
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds <= _LATEST_SECS:
        raise RowError(f"arrival_secs is {text!r}", "it must be a number of seconds, 0 or more")
    return seconds
