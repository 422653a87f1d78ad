"""bailian: the Qwen-Bailian traces (alibaba-edu, Apache-2.0; Wang et al., ATC 2025), as published: one JSON object per line.

Each row is a whole prompt as the service received it, history included. Its `hash_ids` stand for the content of 16 tokens each.
Rows whose chain of `parent_chat_id` ends at the same chat are one program.
"""

from __future__ import annotations

import msgspec

from maitred.core.units import from_seconds
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import UnchainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    RowParser,
    Seconds,
    TokenCount,
    TraceFormat,
    TraceRow,
    check_block_ids,
    json_keys,
    json_row_parser,
)

_BLOCK = 16
_NO_PARENT = -1
_MAX_CHATS = 1 << 18
"""Chats whose first one we know. A follow-up that comes after so many others begins a program of its own."""


class _BailianLine(msgspec.Struct, gc=False):
    chat_id: int
    timestamp: Seconds
    input_length: TokenCount
    output_length: TokenCount
    parent_chat_id: int = _NO_PARENT
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("bailian")
class BailianFormat(TraceFormat):
    """`timestamp` is in seconds. `type` (text, search, image, file) and `turn` are not read."""

    description = "The Qwen-Bailian traces, with chats and prefixes in blocks of 16 tokens."
    times = "seconds"
    prompts_share = "`hash_ids`, blocks of 16"
    example = '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 61.1, "input_length": 20, "output_length": 9, ...}'

    def recognises(self, first_line: str) -> bool:
        return {"chat_id", "timestamp", "input_length"} <= json_keys(first_line)

    def make_parser(self, lines: LineReader) -> RowParser:
        firsts: dict[int, int] = {}

        def row(said: _BailianLine) -> TraceRow:
            parent = said.parent_chat_id
            first = said.chat_id if parent == _NO_PARENT else firsts.get(parent, parent)
            firsts[said.chat_id] = first
            if len(firsts) > _MAX_CHATS:
                del firsts[next(iter(firsts))]
            if said.hash_ids is not None:
                check_block_ids(said.hash_ids, said.input_length, _BLOCK)
            prefix = None if said.hash_ids is None else UnchainedBlockIds(said.hash_ids, said.input_length, _BLOCK)
            at = from_seconds(said.timestamp)
            return TraceRow(at, said.input_length, said.output_length, prefix=prefix, program=str(first))

        return json_row_parser(_BailianLine, self.example, row)
