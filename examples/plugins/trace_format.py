"""A trace format: a log of the `usage` objects that OpenAI's API answers with, one line of JSON per request.

To try it, in this folder:

    maitred simulate --trace trace_format:UsageLog:usage_log.jsonl
"""

from __future__ import annotations

import msgspec

from maitred.core.units import from_seconds
from maitred.workload import RowError, TraceFormat, TraceRow
from maitred.workload.line_reader import LineReader
from maitred.workload.trace_format import RowParser


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Line(msgspec.Struct):
    created: float
    """When it arrived, in seconds since 1970."""
    usage: _Usage
    model: str = ""
    user: str = ""


class UsageLog(TraceFormat):
    """Requests without tokens are bad rows: nothing can be simulated of them."""

    description = "A log of OpenAI usage objects, with the user as the tenant."
    example = '{"created": 1763800000.2, "model": "m", "user": "u1", "usage": {"prompt_tokens": 50, "completion_tokens": 9}}'

    def recognises(self, first_line: str) -> bool:
        return '"created"' in first_line and '"completion_tokens"' in first_line

    def make_parser(self, lines: LineReader) -> RowParser:
        decode = msgspec.json.Decoder(_Line).decode

        def parse(line: str) -> TraceRow:
            try:
                said = decode(line)
            except msgspec.DecodeError as error:
                raise RowError(f"no usage object: {error}", f"write it as {self.example}") from error
            usage = said.usage
            if usage.prompt_tokens < 1 or usage.completion_tokens < 1:
                raise RowError("a request without tokens", "leave it out")
            tenant = f"header:{said.user}" if said.user else ""
            return TraceRow(
                from_seconds(said.created), usage.prompt_tokens, usage.completion_tokens, model=said.model, tenant=tenant
            )

        return parse
