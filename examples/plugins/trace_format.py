"""A trace format: a log of the `usage` objects in the responses of OpenAI's API, one JSON line per request.

To try it, in this folder:

    maitred simulate --trace trace_format:UsageLog:usage_log.jsonl
"""

from __future__ import annotations

import msgspec

from maitred.core.units import from_seconds
from maitred.workload import LineReader, RowError, RowParser, TraceFormat, TraceRow


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Line(msgspec.Struct):
    created: float
    """Arrival, in seconds since 1970."""
    usage: _Usage
    model: str = ""
    user: str = ""


class UsageLog(TraceFormat):
    """A request without tokens is a bad row, because it cannot be simulated."""

    description = "A log of OpenAI usage objects, with the user as the tenant."
    example = '{"created": 1763800000.2, "model": "m", "user": "u1", "usage": {"prompt_tokens": 50, "completion_tokens": 9}}'

    def recognises(self, first_line: str) -> bool:
        return '"created"' in first_line and '"completion_tokens"' in first_line

    def make_parser(self, lines: LineReader) -> RowParser:
        decode = msgspec.json.Decoder(_Line).decode

        def parse(line: str) -> TraceRow:
            try:
                entry = decode(line)
            except msgspec.DecodeError as error:
                raise RowError(f"no usage object: {error}", f"write it as {self.example}") from error
            usage = entry.usage
            if usage.prompt_tokens < 1 or usage.completion_tokens < 1:
                raise RowError("a request without tokens", "leave it out")
            tenant = f"header:{entry.user}" if entry.user else ""
            return TraceRow(
                from_seconds(entry.created), usage.prompt_tokens, usage.completion_tokens, model=entry.model, tenant=tenant
            )

        return parse
