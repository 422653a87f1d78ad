"""JSON lines with `hash_ids`, the content of a prompt in numbered blocks: mooncake, timed_trace, aiperf, bailian.

                   timestamp   an id of hash_ids stands for
    mooncake       ms          a block of 512 tokens and all blocks before it
    timed_trace    seconds     the content of 16 tokens, whatever precedes them
    aiperf         ms          the content of 512 tokens, whatever precedes them
    bailian        seconds     the content of 16 tokens, whatever precedes them

**mooncake**: the Mooncake traces (kvcache-ai/Mooncake, FAST'25), as published.

**timed_trace**: the same keys as `vllm bench serve --dataset-name timed_trace` reads them, in vLLM's default units. Its options
for other units and keys (`--timed-trace-sec-multiplier` and others) are parameters of the format. As in vLLM, ids beyond the
prompt are not read. A prompt that its ids do not cover is an error: vLLM would shorten it. vLLM reads a Mooncake file with a
multiplier of 0.001 and blocks of 512; here that is `timed_trace(0.001, 512):FILE` or `mooncake:FILE`.

**aiperf**: what AIPerf reads as `mooncake_trace`: Mooncake's rows, with sessions. Rows with the same `session_id` are the
rounds of one conversation. As AIPerf sends them, the prompt of a round is all earlier prompts and answers, and `input_length`
new tokens. A round arrives at its `timestamp`, or `delay` ms after the previous answer. A round with a `delay` can only be
replayed in a closed loop (`--session-mode closed-loop`). Blocks have AIPerf's default size. In a session only the ids of the
first round count, because later rounds begin somewhere within a block.

**bailian**: the Qwen-Bailian traces (alibaba-edu, Apache-2.0; Wang et al., ATC 2025), as published. A row is a whole prompt as
the service received it, history included. Rows are one program if their chains of `parent_chat_id` start at the same chat.
"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec

from maitred.core.request import PrefixKeys
from maitred.core.units import Micros, from_ms, from_seconds
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import ChainedBlockIds, ConversationKeys, UnchainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    MAX_SECS,
    Millis,
    RowError,
    RowParser,
    Seconds,
    TokenCount,
    TraceFormat,
    TraceRow,
    check_block_ids,
    join_hints,
    json_keys,
    json_row_parser,
)

_MOONCAKE_BLOCK_TOKENS = 512
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-9, 1e9
_MOONCAKE_HINT = "a file with blocks of 512 is mooncake:FILE"
_AIPERF_BLOCK_TOKENS = 512
_BAILIAN_BLOCK_TOKENS = 16
_NO_PARENT = -1
_MAX_CHATS = 1 << 18
"""Number of chats that are remembered, each with its first chat. A follow-up after more chats than that starts a program of its
own."""
_RoundTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _MooncakeLine(msgspec.Struct, gc=False):
    timestamp: Millis
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("mooncake")
class MooncakeFormat(TraceFormat):
    """`hash_ids`, if present, are the prefix of the request."""

    description = "The Mooncake traces, with prefixes in blocks of 512 tokens."
    times = "ms"
    shared_prefixes = "`hash_ids`, blocks of 512 tokens"
    example = '{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    def recognises(self, first_line: str) -> bool:
        keys = json_keys(first_line)
        return {"timestamp", "input_length"} <= keys <= {"timestamp", "input_length", "output_length", "hash_ids"}

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_MooncakeLine, self.example, _mooncake_row)


def _mooncake_row(line: _MooncakeLine) -> TraceRow:
    prefix = None
    if line.hash_ids is not None:
        check_block_ids(line.hash_ids, line.input_length, _MOONCAKE_BLOCK_TOKENS)
        if len(set(line.hash_ids)) < len(line.hash_ids):
            raise RowError("hash_ids has an id twice", "ids are chained: no prompt can repeat one")
        prefix = ChainedBlockIds(line.hash_ids, line.input_length, _MOONCAKE_BLOCK_TOKENS)
    return TraceRow(from_ms(line.timestamp), line.input_length, line.output_length, prefix=prefix)


class _TimedTraceLine(msgspec.Struct, gc=False):
    timestamp: Seconds
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("timed_trace")
class TimedTraceFormat(TraceFormat):
    """vLLM's timed traces. The first line looks like one of Mooncake's, so the format must be named."""

    description = "What vllm bench serve --dataset-name timed_trace reads; it must be named, because it looks like mooncake."
    times = "seconds, or `sec_multiplier` of them"
    shared_prefixes = "`hash_ids`, blocks of 16 tokens, or of `chunk_hash_size`"
    example = '{"timestamp": 0.5, "input_length": 40, "output_length": 52, "hash_ids": [7, 8, 9]}'

    def __init__(
        self,
        sec_multiplier: float = 1.0,
        chunk_hash_size: int = 16,
        label_timestamp: str = "timestamp",
        label_input_length: str = "input_length",
        label_output_length: str = "output_length",
        label_hash_ids: str = "hash_ids",
    ) -> None:
        """The parameters are vLLM's options of these names: the seconds in a unit of `timestamp`, the tokens that an id stands
        for, and the keys of a line. Raises ValueError for a number out of range."""
        if not _LEAST_MULTIPLIER <= sec_multiplier <= _LARGEST_MULTIPLIER:
            raise ValueError(f"sec_multiplier must be from 1e-9 to 1e9 seconds, such as 0.001, not {sec_multiplier:g}")
        if not 1 <= chunk_hash_size <= MAX_TOKENS:
            raise ValueError(f"chunk_hash_size must be from 1 to {MAX_TOKENS} tokens, not {chunk_hash_size}")
        self._sec_multiplier = sec_multiplier
        self._block_tokens = chunk_hash_size
        self._keys = {
            "timestamp": label_timestamp,
            "input_length": label_input_length,
            "output_length": label_output_length,
            "hash_ids": label_hash_ids,
        }

    def recognises(self, first_line: str) -> bool:
        return False

    def make_parser(self, lines: LineReader) -> RowParser:
        fields = [(field.name, field.type, field.default) for field in msgspec.structs.fields(_TimedTraceLine)]
        renamed = msgspec.defstruct("TimedTraceLine", fields, bases=(_TimedTraceLine,), rename=self._keys, gc=False)
        return json_row_parser(cast(type[_TimedTraceLine], renamed), self.example, self._row)

    def _row(self, line: _TimedTraceLine) -> TraceRow:
        secs = line.timestamp * self._sec_multiplier
        if secs > MAX_SECS:
            raise RowError(f"{self._keys['timestamp']} is {line.timestamp:g}", f"that is {secs:g} s: see sec_multiplier")
        prefix = None
        if line.hash_ids is not None:
            blocks = -(-line.input_length // self._block_tokens)
            ids = tuple(line.hash_ids[:blocks])
            try:
                check_block_ids(ids, line.input_length, self._block_tokens)
            except RowError as error:
                hint = join_hints(error.hint, f"chunk_hash_size says how many tokens an id stands for; {_MOONCAKE_HINT}")
                raise RowError(error.problem, hint) from error
            prefix = UnchainedBlockIds(ids, line.input_length, self._block_tokens)
        return TraceRow(from_seconds(secs), line.input_length, line.output_length, prefix=prefix)


class _AiPerfLine(msgspec.Struct, gc=False):
    input_length: _RoundTokens | None = None
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
        check_block_ids(line.hash_ids, tokens, _AIPERF_BLOCK_TOKENS)
        return UnchainedBlockIds(line.hash_ids, tokens, _AIPERF_BLOCK_TOKENS)


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
        return json_row_parser(_BailianLine, self.example, _BailianReader().row)


class _BailianReader:
    def __init__(self) -> None:
        self._first_chats: dict[int, int] = {}
        """The first chat of the chain that each of the last chats is in."""

    def row(self, line: _BailianLine) -> TraceRow:
        prefix = None
        if line.hash_ids is not None:
            check_block_ids(line.hash_ids, line.input_length, _BAILIAN_BLOCK_TOKENS)
            prefix = UnchainedBlockIds(line.hash_ids, line.input_length, _BAILIAN_BLOCK_TOKENS)
        at, program = from_seconds(line.timestamp), str(self._first_chat(line))
        return TraceRow(at, line.input_length, line.output_length, prefix=prefix, program=program)

    def _first_chat(self, line: _BailianLine) -> int:
        known, parent = self._first_chats, line.parent_chat_id
        # A parent that is not known, or was forgotten, counts as the first of its chain.
        first = known[line.chat_id] = line.chat_id if parent == _NO_PARENT else known.get(parent, parent)
        if len(known) > _MAX_CHATS:
            del known[next(iter(known))]
        return first
