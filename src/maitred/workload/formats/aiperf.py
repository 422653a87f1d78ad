"""aiperf: what AIPerf reads as `mooncake_trace`: Mooncake's rows, with sessions.

Rows with the same `session_id` are the turns of one conversation. As AIPerf sends them, a turn's prompt is all that was said
before, prompts and answers, and `input_length` new tokens. A turn comes at its `timestamp` (ms), or `delay` ms after the answer
before it; how the latter go on without waiting for an answer nobody can say (`--session-mode closed-loop`).

`hash_ids` stand for 512 tokens each, whatever stands before them (AIPerf's default block size). In a session those of the first
turn count; later ones begin somewhere within a block.
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

_BLOCK = 512
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
    """Tokens."""
    head: PrefixKeys | None = None


@FORMATS.register("aiperf")
class AiPerfFormat(TraceFormat):
    """Prompts must be given as lengths: a text has no known number of tokens without the model's tokeniser."""

    description = "What AIPerf replays as mooncake_trace, with sessions and delays."
    times = "ms"
    prompts_share = "`hash_ids`, blocks of 512, and what was said before"
    example = '{"session_id": "s1", "timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    has_think_times = True
    max_disorder = 4_096
    """The turns of a session often stand together."""

    def recognises(self, first_line: str) -> bool:
        keys = json_keys(first_line)
        return not keys.isdisjoint({"session_id", "delay"}) and not keys.isdisjoint({"input_length", "text_input", "messages"})

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_AiPerfLine, self.example, _AiPerfReader().row)


class _AiPerfReader:
    def __init__(self) -> None:
        self._sessions: dict[str, _AiPerfSession] = {}
        self._latest: Micros = 0

    def row(self, said: _AiPerfLine) -> TraceRow:
        if said.input_length is None:
            raise RowError("it has no input_length", "prompts given as text cannot be counted: write their length in tokens")
        if said.output_length is None:
            raise RowError("it has no output_length", f"a row looks like {AiPerfFormat.example}")
        follows = said.session_id in self._sessions
        if said.timestamp is None and not follows:
            raise RowError("it has no timestamp", "the first turn of a session needs one, in ms")
        if said.timestamp is not None:
            self._latest = from_ms(said.timestamp)
        return self._turn_row(said, said.input_length, said.output_length)

    def _turn_row(self, said: _AiPerfLine, new: int, answer: int) -> TraceRow:
        first = said.session_id not in self._sessions
        if first and not new:
            raise RowError("input_length is 0", "only a later turn of a session may add nothing")
        head = self._head(said, new) if first else None
        session = self._sessions.get(said.session_id) or _AiPerfSession(len(self._sessions), head=head)
        prompt = session.history_tokens + new
        if said.session_id:
            self._sessions[said.session_id] = session
            session.history_tokens = prompt + answer
        talk = ConversationKeys(session.number, prompt, session.head) if said.session_id else None
        return TraceRow(
            self._latest,
            prompt,
            answer,
            prefix=talk or head,
            conversation_prefix=talk and ConversationKeys(session.number, prompt + answer, session.head),
            program=said.session_id,
            think_time=None if said.delay is None else from_ms(said.delay),
            has_arrival=said.timestamp is not None,
        )

    def _head(self, said: _AiPerfLine, tokens: int) -> UnchainedBlockIds | None:
        if said.hash_ids is None:
            return None
        check_block_ids(said.hash_ids, tokens, _BLOCK)
        return UnchainedBlockIds(said.hash_ids, tokens, _BLOCK)
