"""mooncake: the Mooncake traces (kvcache-ai/Mooncake, FAST'25), as published: one JSON object per line."""

from __future__ import annotations

import msgspec

from maitred.core.units import from_ms
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import ChainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    Millis,
    RowParser,
    TokenCount,
    TraceFormat,
    TraceRow,
    check_block_ids,
    json_keys,
    json_row_parser,
)

_MOONCAKE_BLOCK_TOKENS = 512
"""Tokens that one hash id stands for; an id covers its block and all before it."""


class _MooncakeLine(msgspec.Struct, gc=False):
    timestamp: Millis
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("mooncake")
class MooncakeFormat(TraceFormat):
    """`timestamp` is in ms from the start of the trace. `hash_ids`, where present, become the prefix of the request."""

    description = "The Mooncake traces, with prefixes in blocks of 512 tokens."
    times = "ms"
    prompts_share = "`hash_ids`, blocks of 512"
    example = '{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    def recognises(self, first_line: str) -> bool:
        return (
            {"timestamp", "input_length"} <= json_keys(first_line) <= {"timestamp", "input_length", "output_length", "hash_ids"}
        )

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_MooncakeLine, self.example, _mooncake_row)


def _mooncake_row(said: _MooncakeLine) -> TraceRow:
    if said.hash_ids is not None:
        check_block_ids(said.hash_ids, said.input_length, _MOONCAKE_BLOCK_TOKENS)
    prefix = None if said.hash_ids is None else ChainedBlockIds(said.hash_ids, said.input_length, _MOONCAKE_BLOCK_TOKENS)
    return TraceRow(from_ms(said.timestamp), said.input_length, said.output_length, prefix=prefix)
