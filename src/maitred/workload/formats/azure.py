"""azure: the Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024), as published: CSV, CRLF."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from maitred.units import Micros
from maitred.workload.lines import Lines
from maitred.workload.row import FORMATS, Columns, Row, RowError, RowParser, TraceFormat, split, tokens

_NAMES = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@FORMATS.register("azure")
class Azure(TraceFormat):
    """TIMESTAMP is UTC text down to 100 ns, of which whole microseconds are kept, cut and not rounded."""

    about = "The Azure LLM inference traces of 2023 and 2024."
    example = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def recognises(self, first_line: str) -> bool:
        return set(_NAMES) <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        columns = Columns(next(lines), *_NAMES)

        def parse(line: str) -> Row:
            timestamp, prompt, answer = columns.pick(line)
            return Row(_instant(timestamp), tokens(prompt, "ContextTokens"), tokens(answer, "GeneratedTokens"))

        return parse


def _instant(text: str) -> Micros:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise RowError(f"TIMESTAMP is {text!r}", "write it as 2023-11-16 18:17:03.9799600") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND
