"""agentic: recorded sessions of coding agents (callanjfox/kv-cache-tester, Apache-2.0), in two re-encodings.

`sessions_delta.jsonl` has a session per line. Its `requests` may hold sub-agents, which have `requests` of their own. The
blocks of a prompt are the first `keep` blocks of the previous prompt and the ranges of `new`. Block ids are chained and valid
within their session only. Example: after a prompt with the blocks 1 to 10, `"keep": 8, "new": [[11, 13]]` means the blocks 1 to
8 and 11 to 13.

`requests.csv` has a request per line, session after session, without block ids. It says only how many leading blocks a prompt
shares with the previous one of its conversation. It does not say when a sub-agent (`sub`: `/1`, launched by entry 1 of the
session) started; the parser assumes the end of the request before it. The times of a sub-agent count from its own start.

Every session starts at 0 of its own clock. As recorded (`open`), all sessions therefore start at once, and all of them must be
read first; `--session-mode closed-loop` with `--concurrent-sessions` is what a server would meet. A request follows
`think_time` after the previous answer. A sub-agent follows after the time that was recorded from the previous answer to its
start.

The content of an answer is known if the next prompt contains it completely: if that prompt keeps all blocks, is long enough,
and there was no thinking in the answer, which prompts leave out. Requests without tokens failed; they are not replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from operator import attrgetter
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from maitred.core.units import Micros, from_seconds
from maitred.kv.key_ranges import NO_KEYS, KeyRanges
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import ChainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    CsvColumns,
    NotReplayedError,
    RowError,
    RowParser,
    Seconds,
    TraceFormat,
    TraceRow,
    json_keys,
    json_row_parser,
    parse_seconds,
    parse_tokens,
    parse_tokens_or_zero,
    split_header,
)

COLUMNS = ("trace", "sub", "t", "type", "model", "in", "out", "api_time", "think_time", "blocks", "shared_prefix_blocks")
_TABLE_BLOCK_TOKENS = 64
_IDS_PER_SESSION: Final = 1 << 32
"""Block ids are counted within their session, and made different from those of other sessions."""


_BlockId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=_IDS_PER_SESSION)]


class _RecordedCall(msgspec.Struct, gc=False):
    """A request; with `requests`, a sub-agent."""

    t: Seconds
    type: str = "n"
    model: str = ""
    input: int = msgspec.field(name="in", default=0)
    output: int = msgspec.field(name="out", default=0)
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    output_types: tuple[str, ...] = ()
    keep: Annotated[int, msgspec.Meta(ge=0)] = 0
    new: tuple[tuple[_BlockId, _BlockId], ...] = ()
    requests: tuple[_RecordedCall, ...] | None = None


class _RecordedSession(msgspec.Struct, gc=False):
    id: str
    requests: tuple[_RecordedCall, ...]
    block_size: int = 64


@FORMATS.register("agentic")
class AgenticFormat(TraceFormat):
    """A session is a program, and so is each sub-agent (`trace_0003/1`: launched by entry 1 of the session)."""

    description = "Recorded sessions of coding agents, with sub-agents and think times (kv-cache-tester's, re-encoded)."
    times = "seconds"
    shared_prefixes = "block ids of 64 tokens, within a session"
    example = (
        '{"id": "trace_0001", "block_size": 64, "requests": [{"t": 0.0, "in": 700, "out": 52, "keep": 0, "new": [[1, 10]]}]}'
    )
    is_grouped_by_session = True
    has_think_times = True
    max_disorder = sys.maxsize

    def recognises(self, first_line: str) -> bool:
        return {"id", "requests", "block_size"} <= json_keys(first_line) or set(COLUMNS) <= set(split_header(first_line))

    def make_parser(self, lines: LineReader) -> RowParser:
        if not lines.next_line.lstrip().startswith("{"):
            return _RequestTable(CsvColumns(next(lines), *COLUMNS)).row
        numbers = count()

        def session_rows(session: _RecordedSession) -> list[TraceRow | RowError]:
            return list(_SessionRows(session, next(numbers)).rows(session.requests, session.id, 0))

        return json_row_parser(_RecordedSession, self.example, session_rows)


class _SessionRows:
    """The rows of one session of `sessions_delta.jsonl`."""

    def __init__(self, session: _RecordedSession, number: int) -> None:
        if session.block_size < 1:
            raise RowError(f"block_size is {session.block_size}", "it must be at least 1")
        self._block_tokens = session.block_size
        self._first_id = number * _IDS_PER_SESSION
        self._end = 0
        """No prompt so far has a block with this id or a larger one."""

    def rows(self, calls: Sequence[_RecordedCall], program: str, start: Micros) -> Iterator[TraceRow | RowError]:
        """Yield the rows of a program that started at `start` on the session's clock, with those of its sub-agents."""
        last_end, following = start, NO_KEYS
        first = next((call for call in calls if call.requests is None), None)
        if first is not None:
            following = self._next_blocks(NO_KEYS, first)
        for index, (call, later) in enumerate(_with_next_call(calls)):
            at = start + from_seconds(call.t)
            if call.requests is not None:
                yield from self._sub_agent(call.requests, f"{program}/{index}", at, program, max(at - last_end, 0))
                continue
            # Before the check, because `keep` of the next request counts from this prompt even if it is not replayed.
            blocks = following
            if later is not None:
                following = self._next_blocks(blocks, later)
            if not (0 < call.input <= MAX_TOKENS and 0 < call.output <= MAX_TOKENS):
                yield NotReplayedError(f"request {index} of {program} has no tokens", "it is not replayed")
                continue
            yield TraceRow(
                at,
                call.input,
                call.output,
                prefix=self._block_ids(blocks, call.input),
                conversation_prefix=self._conversation_prefix(call, blocks, later, following),
                stream=call.type == "s",
                model=call.model,
                program=program,
                think_time=max(at - last_end, 0) if call.think_time is None else from_seconds(call.think_time),
            )
            last_end = at + from_seconds(call.api_time or 0.0)

    def _sub_agent(
        self, calls: Sequence[_RecordedCall], program: str, start: Micros, parent: str, think_time: Micros
    ) -> Iterator[TraceRow | RowError]:
        """Yield the rows of a sub-agent. Its first row follows a request of its parent."""
        for row in self.rows(calls, program, start):
            if isinstance(row, TraceRow) and row.program == program and parent:
                yield replace(row, parent_program=parent, think_time=think_time)
                parent = ""
            else:
                yield row

    def _next_blocks(self, blocks: KeyRanges, call: _RecordedCall) -> KeyRanges:
        """Return the blocks of the prompt of `call`, which follows the prompt with `blocks`."""
        kept, base = blocks.head(call.keep), self._first_id
        if not call.new:
            return kept
        ranges, end, are_unseen = list[range](), self._end, True
        for first, last in call.new:
            if first > last:
                raise RowError(f"new has the range {[first, last]}", "its first block comes before its last, as in [11, 13]")
            are_unseen = are_unseen and first >= end
            end = max(end, last + 1)
            ranges.append(range(base + first, base + last + 1))
        self._end = end
        joined = kept.extended(ranges)
        if are_unseen:
            return joined
        in_order = sorted(joined.ranges(), key=attrgetter("start"))
        repeated = next((after.start for before, after in pairwise(in_order) if after.start < before.stop), None)
        if repeated is not None:
            raise RowError(f"a prompt has the block {repeated - base} twice", "ids are chained: no prompt can repeat one")
        return joined

    def _block_ids(self, blocks: KeyRanges, tokens: int) -> ChainedBlockIds:
        return ChainedBlockIds(blocks, tokens, self._block_tokens)

    def _conversation_prefix(
        self, call: _RecordedCall, blocks: KeyRanges, later: _RecordedCall | None, following: KeyRanges
    ) -> ChainedBlockIds | None:
        """Return the blocks of prompt and answer, or None if the next prompt, of the blocks `following`, does not contain the
        answer completely."""
        tokens = call.input + call.output
        if later is None or "thinking" in call.output_types or later.keep < len(blocks) or later.input < tokens:
            return None
        return self._block_ids(following.head(tokens // self._block_tokens), tokens)


def _with_next_call(calls: Sequence[_RecordedCall]) -> list[tuple[_RecordedCall, _RecordedCall | None]]:
    """Return each entry with the next entry that is not a sub-agent."""
    pairs: list[tuple[_RecordedCall, _RecordedCall | None]] = []
    later: _RecordedCall | None = None
    for call in reversed(calls):
        pairs.append((call, later))
        later = later if call.requests is not None else call
    return pairs[::-1]


class _TableProgram(msgspec.Struct):
    """A session or a sub-agent of `requests.csv`, as far as it has been read."""

    start: Micros
    parent: str
    last_end: Micros = 0
    """The end of its latest request."""
    blocks: KeyRanges = NO_KEYS


class _RequestTable:
    """The parser of `requests.csv`."""

    def __init__(self, columns: CsvColumns) -> None:
        self._columns = columns
        self._session, self._number = "", -1
        self._programs: dict[str, _TableProgram] = {}
        self._num_ids = 0
        """Block ids given out in the session so far. Blocks that are not shared get new ids."""

    def row(self, line: str) -> TraceRow:
        session, sub, t, kind, model, prompt, answer, api_time, think_time, blocks, shared = self._columns.fields(line)
        if session != self._session:
            self._session, self._number, self._programs, self._num_ids = session, self._number + 1, {}, 0
        program = self._programs.get(sub) or self._start_program(sub)
        at = program.start + parse_seconds(t, "t")
        num_shared = parse_tokens_or_zero(shared, "shared_prefix_blocks")
        program.blocks = self._next_blocks(program.blocks, num_shared, parse_tokens_or_zero(blocks, "blocks"))
        if prompt == "0" or answer == "0":
            raise NotReplayedError("a request without tokens", "it is not replayed")
        prompt_tokens = parse_tokens(prompt, "in")
        no_think_time = think_time in ("", "None")
        row = TraceRow(
            at,
            prompt_tokens,
            parse_tokens(answer, "out"),
            prefix=ChainedBlockIds(program.blocks, prompt_tokens, _TABLE_BLOCK_TOKENS),
            stream=kind == "s",
            model=model,
            program=session + sub,
            parent_program=program.parent,
            think_time=max(at - program.last_end, 0) if no_think_time else parse_seconds(think_time, "think_time"),
        )
        program.last_end = at + (0 if api_time in ("", "None") else parse_seconds(api_time, "api_time"))
        program.parent = ""
        return row

    def _start_program(self, sub: str) -> _TableProgram:
        parent_sub = sub.rpartition("/")[0]
        parent = self._programs.get(parent_sub) if sub else None
        start = parent.last_end if parent else 0
        program = _TableProgram(start, self._session + parent_sub if parent else "", last_end=start)
        self._programs[sub] = program
        return program

    def _next_blocks(self, before: KeyRanges, num_shared: int, num_blocks: int) -> KeyRanges:
        kept = before.head(min(num_shared, num_blocks))
        num_new = num_blocks - len(kept)
        first = self._number * _IDS_PER_SESSION + self._num_ids + 1
        self._num_ids += num_new
        return kept.extended([range(first, first + num_new)]) if num_new else kept
