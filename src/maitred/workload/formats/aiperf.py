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

from maitred.request import PrefixKeys
from maitred.units import Micros, from_ms
from maitred.workload.json_rows import Millis, Tokens, check_ids, keys_of, objects
from maitred.workload.lengths import MOST_TOKENS
from maitred.workload.lines import Lines
from maitred.workload.prefix import ContentIds, Conversation
from maitred.workload.row import FORMATS, Row, RowError, RowParser, TraceFormat

_BLOCK = 512
_Length = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _Line(msgspec.Struct, gc=False):
    input_length: _Length | None = None
    output_length: Tokens | None = None
    timestamp: Millis | None = None
    delay: Millis | None = None
    session_id: str = ""
    hash_ids: tuple[int, ...] | None = None


class _Session(msgspec.Struct):
    number: int
    said: int = 0
    """Tokens."""
    head: PrefixKeys | None = None


@FORMATS.register("aiperf")
class AiPerf(TraceFormat):
    """Prompts must be given as lengths: a text has no known number of tokens without the model's tokeniser."""

    about = "What AIPerf replays as mooncake_trace, with sessions and delays."
    example = '{"session_id": "s1", "timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    thinks = True
    disorder = 4_096
    """The turns of a session often stand together."""

    def recognises(self, first_line: str) -> bool:
        keys = keys_of(first_line)
        return not keys.isdisjoint({"session_id", "delay"}) and not keys.isdisjoint({"input_length", "text_input", "messages"})

    def begin(self, lines: Lines) -> RowParser:
        return objects(_Line, self.example, _Reader().row)


class _Reader:
    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._latest: Micros = 0

    def row(self, said: _Line) -> Row:
        if said.input_length is None:
            raise RowError("it has no input_length", "prompts given as text cannot be counted: write their length in tokens")
        if said.output_length is None:
            raise RowError("it has no output_length", f"a row looks like {AiPerf.example}")
        follows = said.session_id in self._sessions
        if said.timestamp is None and not follows:
            raise RowError("it has no timestamp", "the first turn of a session needs one, in ms")
        if said.timestamp is not None:
            self._latest = from_ms(said.timestamp)
        return self._turn(said, said.input_length, said.output_length)

    def _turn(self, said: _Line, new: int, answer: int) -> Row:
        first = said.session_id not in self._sessions
        if first and not new:
            raise RowError("input_length is 0", "only a later turn of a session may add nothing")
        head = self._head(said, new) if first else None
        session = self._sessions.get(said.session_id) or _Session(len(self._sessions), head=head)
        prompt = session.said + new
        if said.session_id:
            self._sessions[said.session_id] = session
            session.said = prompt + answer
        talk = Conversation(session.number, prompt, session.head) if said.session_id else None
        return Row(
            self._latest,
            prompt,
            answer,
            prefix=talk or head,
            whole=talk and Conversation(session.number, prompt + answer, session.head),
            program=said.session_id,
            think=None if said.delay is None else from_ms(said.delay),
            timed=said.timestamp is not None,
        )

    def _head(self, said: _Line, tokens: int) -> ContentIds | None:
        if said.hash_ids is None:
            return None
        check_ids(said.hash_ids, tokens, _BLOCK)
        return ContentIds(said.hash_ids, tokens, _BLOCK)
