"""burstgpt: the BurstGPT traces (Wang et al., 2024, HPMLL/BurstGPT), as published: CSV of six or eight columns (`Session ID`).

`Timestamp` is in seconds; the later files begin far from 0. A row with 0 response tokens is a request that failed. It is not
replayed but counted, as in vLLM's loader. The files `..._without_fails_...` have no such rows.
"""

from __future__ import annotations

from maitred.workload.line_reader import LineReader
from maitred.workload.trace_format import (
    FORMATS,
    CsvColumns,
    NotReplayedError,
    RowParser,
    TraceFormat,
    TraceRow,
    parse_seconds,
    parse_tokens,
    split_header,
)

_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


@FORMATS.register("burstgpt")
class BurstGptFormat(TraceFormat):
    """A `Session ID` becomes the program."""

    description = "The BurstGPT traces, with or without sessions."
    times = "seconds"
    example = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"

    def recognises(self, first_line: str) -> bool:
        return set(_COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        columns = CsvColumns(next(lines), *_COLUMNS, optional=("Session ID",))

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
