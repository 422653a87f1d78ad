"""mooncake: the Mooncake traces (kvcache-ai/Mooncake, FAST'25), as published: one JSON object per line."""

from __future__ import annotations

import msgspec

from maitred.units import from_ms
from maitred.workload.json_rows import Millis, Tokens, check_ids, keys_of, objects
from maitred.workload.lines import Lines
from maitred.workload.prefix import BlockIds
from maitred.workload.row import FORMATS, Row, RowParser, TraceFormat

BLOCK = 512
"""Tokens that one hash id stands for; an id covers its block and all before it."""


class _Line(msgspec.Struct, gc=False):
    timestamp: Millis
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("mooncake")
class Mooncake(TraceFormat):
    """`timestamp` is in ms from the start of the trace. `hash_ids`, where present, become the prefix of the request."""

    about = "The Mooncake traces, with prefixes in blocks of 512 tokens."
    example = '{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    def recognises(self, first_line: str) -> bool:
        return (
            {"timestamp", "input_length"} <= keys_of(first_line) <= {"timestamp", "input_length", "output_length", "hash_ids"}
        )

    def begin(self, lines: Lines) -> RowParser:
        return objects(_Line, self.example, _row)


def _row(said: _Line) -> Row:
    if said.hash_ids is not None:
        check_ids(said.hash_ids, said.input_length, BLOCK)
    prefix = None if said.hash_ids is None else BlockIds(said.hash_ids, said.input_length, BLOCK)
    return Row(from_ms(said.timestamp), said.input_length, said.output_length, prefix=prefix)
