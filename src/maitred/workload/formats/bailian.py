"""bailian: the Qwen-Bailian traces (alibaba-edu, Apache-2.0; Wang et al., ATC 2025), as published: JSON lines.

A row is a whole prompt as the service received it, history included. An id of `hash_ids` stands for the content of 16 tokens.
Rows whose chain of `parent_chat_id` starts at the same chat are one program.
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

_BLOCK_TOKENS = 16
_NO_PARENT = -1
_MAX_CHATS = 1 << 18
"""Number of chats whose first chat is remembered. A follow-up after more chats than that starts a program of its own."""


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
    shared_prefixes = "`hash_ids`, blocks of 16 tokens"
    example = '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 61.1, "input_length": 20, "output_length": 9, ...}'

    def recognises(self, first_line: str) -> bool:
        return {"chat_id", "timestamp", "input_length"} <= json_keys(first_line)

    def make_parser(self, lines: LineReader) -> RowParser:
        first_chats: dict[int, int] = {}

        def to_row(line: _BailianLine) -> TraceRow:
            parent = line.parent_chat_id
            first_chat = line.chat_id if parent == _NO_PARENT else first_chats.get(parent, parent)
            first_chats[line.chat_id] = first_chat
            if len(first_chats) > _MAX_CHATS:
                del first_chats[next(iter(first_chats))]
            prefix = None
            if line.hash_ids is not None:
                check_block_ids(line.hash_ids, line.input_length, _BLOCK_TOKENS)
                prefix = UnchainedBlockIds(line.hash_ids, line.input_length, _BLOCK_TOKENS)
            at = from_seconds(line.timestamp)
            return TraceRow(at, line.input_length, line.output_length, prefix=prefix, program=str(first_chat))

        return json_row_parser(_BailianLine, self.example, to_row)
