"""bailian: the Qwen-Bailian traces (alibaba-edu, Apache-2.0; Wang et al., ATC 2025), as published: one JSON object per line.

Each row is a whole prompt as the service received it, history included. Its `hash_ids` stand for the content of 16 tokens each.
Rows whose chain of `parent_chat_id` ends at the same chat are one program.
"""

from __future__ import annotations

import msgspec

from maitred.units import from_seconds
from maitred.workload.json_rows import Seconds, Tokens, check_ids, keys_of, objects
from maitred.workload.lines import Lines
from maitred.workload.prefix import ContentIds
from maitred.workload.row import FORMATS, Row, RowParser, TraceFormat

_BLOCK = 16
_NO_PARENT = -1
_REMEMBERED = 1 << 18
"""Chats whose first one we know. A follow-up that comes after so many others begins a program of its own."""


class _Line(msgspec.Struct, gc=False):
    chat_id: int
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    parent_chat_id: int = _NO_PARENT
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("bailian")
class Bailian(TraceFormat):
    """`timestamp` is in seconds. `type` (text, search, image, file) and `turn` are not read."""

    about = "The Qwen-Bailian traces, with chats and prefixes in blocks of 16 tokens."
    example = '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 61.1, "input_length": 20, "output_length": 9, ...}'

    def recognises(self, first_line: str) -> bool:
        return {"chat_id", "timestamp", "input_length"} <= keys_of(first_line)

    def begin(self, lines: Lines) -> RowParser:
        firsts: dict[int, int] = {}

        def row(said: _Line) -> Row:
            parent = said.parent_chat_id
            first = said.chat_id if parent == _NO_PARENT else firsts.get(parent, parent)
            firsts[said.chat_id] = first
            if len(firsts) > _REMEMBERED:
                del firsts[next(iter(firsts))]
            if said.hash_ids is not None:
                check_ids(said.hash_ids, said.input_length, _BLOCK)
            prefix = None if said.hash_ids is None else ContentIds(said.hash_ids, said.input_length, _BLOCK)
            at = from_seconds(said.timestamp)
            return Row(at, said.input_length, said.output_length, prefix=prefix, program=str(first))

        return objects(_Line, self.example, row)
