"""aiperf: what AIPerf reads as `mooncake_trace`: Mooncake's rows, with sessions.

Rows with the same `session_id` are the rounds of one conversation. As AIPerf sends them, the prompt of a round is all
earlier prompts and answers, and `input_length` new tokens. A round arrives at its `timestamp` (ms), or `delay` ms after
the previous answer. A round with a `delay` can only be replayed in a closed loop (`--session-mode closed-loop`).

An id of `hash_ids` stands for the content of 512 tokens (AIPerf's default block size), whatever precedes them. In a session
only the ids of the first round count, because later rounds begin somewhere within a block.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from maitred.core.request import PrefixKeys
from maitred.core.units import Micros, from_ms
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import ConversationKeys, UnchainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    Millis,
    RowError,
    RowParser,
    TokenCount,
    TraceFormat,
    TraceRow,
    check_block_ids,
    json_keys,
    json_row_parser,
)

_BLOCK_TOKENS = 512
_Length = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _AiPerfLine(msgspec.Struct, gc=False):
    input_length: _Length | None = None
    output_length: TokenCount | None = None
    timestamp: Millis | None = None
    delay: Millis | None = None
    session_id: str = ""
    hash_ids: tuple[int, ...] | None = None


class _AiPerfSession(msgspec.Struct):
    number: int
    history_tokens: int = 0
    head: PrefixKeys | None = None
    """The prompt of the first round, if the trace has its ids."""


@FORMATS.register("aiperf")
class AiPerfFormat(TraceFormat):
    """Prompts must be given as lengths: the number of tokens of a text depends on the model's tokenizer."""

    description = "What AIPerf reads as mooncake_trace, with sessions and delays."
    times = "ms"
    shared_prefixes = "`hash_ids`, blocks of 512 tokens, and the history of a session"
    example = '{"session_id": "s1", "timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    has_think_times = True
    max_disorder = 4_096
    """The rounds of a session often stand together."""

    def recognises(self, first_line: str) -> bool:
        keys = json_keys(first_line)
        return not keys.isdisjoint({"session_id", "delay"}) and not keys.isdisjoint({"input_length", "text_input", "messages"})

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_AiPerfLine, self.example, _AiPerfReader().row)


class _AiPerfReader:
    def __init__(self) -> None:
        self._sessions: dict[str, _AiPerfSession] = {}
        self._latest_timestamp: Micros = 0

    def row(self, line: _AiPerfLine) -> TraceRow:
        if line.input_length is None:
            raise RowError("it has no input_length", "prompts given as text cannot be counted: write their length in tokens")
        if line.output_length is None:
            raise RowError("it has no output_length", f"a row looks like {AiPerfFormat.example}")
        if line.timestamp is None and line.session_id not in self._sessions:
            raise RowError("it has no timestamp", "the first turn of a session needs one, in ms")
        if line.timestamp is not None:
            self._latest_timestamp = from_ms(line.timestamp)
        return self._round_row(line, line.input_length, line.output_length)

    def _round_row(self, line: _AiPerfLine, new_tokens: int, output_tokens: int) -> TraceRow:
        is_first = line.session_id not in self._sessions
        if is_first and not new_tokens:
            raise RowError("input_length is 0", "only a later turn of a session may add nothing")
        head = self._head(line, new_tokens) if is_first else None
        session = self._sessions.get(line.session_id) or _AiPerfSession(len(self._sessions), head=head)
        prompt_tokens = session.history_tokens + new_tokens
        prefix, conversation_prefix = head, None
        if line.session_id:
            self._sessions[line.session_id] = session
            session.history_tokens = prompt_tokens + output_tokens
            prefix = ConversationKeys(session.number, prompt_tokens, session.head)
            conversation_prefix = ConversationKeys(session.number, session.history_tokens, session.head)
        return TraceRow(
            self._latest_timestamp,
            prompt_tokens,
            output_tokens,
            prefix=prefix,
            conversation_prefix=conversation_prefix,
            program=line.session_id,
            think_time=None if line.delay is None else from_ms(line.delay),
            has_arrival=line.timestamp is not None,
        )

    def _head(self, line: _AiPerfLine, tokens: int) -> PrefixKeys | None:
        if line.hash_ids is None:
            return None
        check_block_ids(line.hash_ids, tokens, _BLOCK_TOKENS)
        return UnchainedBlockIds(line.hash_ids, tokens, _BLOCK_TOKENS)
