"""CSV files that say of a prompt only how many tokens it has: azure, burstgpt.

**azure**: the Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024), as published: CSV with CRLF.

**burstgpt**: the BurstGPT traces (Wang et al., 2024, HPMLL/BurstGPT), as published: CSV of six or eight columns (`Session ID`).
`Timestamp` is in seconds; the later files begin far from 0. A row with 0 response tokens is a request that failed. It is not
replayed but counted, as in vLLM's loader. The files `..._without_fails_...` have no such rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from maitred.core.units import Micros
from maitred.workload.line_reader import LineReader
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

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


@FORMATS.register("azure")
class AzureFormat(TraceFormat):
    """TIMESTAMP is UTC text with a resolution of 100 ns, truncated to whole microseconds."""

    description = "The Azure LLM inference traces of 2023 and 2024."
    times = "text, UTC or with a zone, to 100 ns"
    example = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def recognises(self, first_line: str) -> bool:
        return set(_AZURE_COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        columns = CsvColumns(next(lines), *_AZURE_COLUMNS)

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


@FORMATS.register("burstgpt")
class BurstGptFormat(TraceFormat):
    """A `Session ID` becomes the program."""

    description = "The BurstGPT traces, with or without sessions."
    times = "seconds"
    example = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"

    def recognises(self, first_line: str) -> bool:
        return set(_BURSTGPT_COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        columns = CsvColumns(next(lines), *_BURSTGPT_COLUMNS, optional=("Session ID",))

        def parse(line: str) -> TraceRow:
            at, model, prompt, answer, session = columns.fields(line)
            if answer.strip() == "0":
                raise NotReplayedError("a request that failed: it has no response tokens", "it is not replayed")
            return TraceRow(
                parse_seconds(at, "Timestamp"),
                parse_tokens(prompt, "Request tokens"),
                parse_tokens(answer, "Response tokens"),
                model=model.strip(),
                program=session.strip(),
            )

        return parse
