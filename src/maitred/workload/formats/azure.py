"""azure: the Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024), as published: CSV with CRLF."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from maitred.core.units import Micros
from maitred.workload.line_reader import LineReader
from maitred.workload.trace_format import (
    FORMATS,
    CsvColumns,
    RowError,
    RowParser,
    TraceFormat,
    TraceRow,
    parse_tokens,
    split_header,
)

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@FORMATS.register("azure")
class AzureFormat(TraceFormat):
    """TIMESTAMP is UTC text with a resolution of 100 ns, truncated to whole microseconds."""

    description = "The Azure LLM inference traces of 2023 and 2024."
    times = "text, UTC or with a zone, to 100 ns"
    example = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def recognises(self, first_line: str) -> bool:
        return set(_COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        columns = CsvColumns(next(lines), *_COLUMNS)

        def parse(line: str) -> TraceRow:
            timestamp, prompt, answer = columns.fields(line)
            return TraceRow(
                _parse_timestamp(timestamp),
                parse_tokens(prompt, "ContextTokens"),
                parse_tokens(answer, "GeneratedTokens"),
            )

        return parse


def _parse_timestamp(text: str) -> Micros:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise RowError(f"TIMESTAMP is {text!r}", "write it as 2023-11-16 18:17:03.9799600") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND
