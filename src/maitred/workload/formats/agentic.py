"""`requests.csv` of the agentic set: a request per line, sessions one after another, without block ids.

What it tells of the content of a prompt is how many leading blocks it shares with the one before it in its conversation. It
does not tell when a sub-agent (`sub`: `/1`, launched by the entry 1 of the session) began: here, when the request before it
had ended. Its times count from its own beginning.

agentic: recorded sessions of coding agents (callanjfox/kv-cache-tester, Apache-2.0), in two re-encodings.

`sessions_delta.jsonl`: a session per line, with `requests` in it, and among these sub-agents with `requests` of their own. A
prompt's blocks are the first `keep` of the request before it and the ranges of `new`; their ids are chained, and mean something
within their session only. `requests.csv`: see `agentic_table`.

Every session begins at 0 of its own clock, so as recorded all of them come at once, and must all be read for that;
`--session-mode closed-loop` with `--concurrent-sessions` is how a server would meet them. A request follows `think_time` after
the answer before it, a sub-agent as long after it as its beginning was recorded to.

What an answer becomes in the next prompt is known where that goes on with all of it: where the next prompt keeps all blocks and
is long enough, and there was no thinking in the answer, which prompts leave out. Requests without tokens failed; they are not
replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec
from msgspec.structs import replace

from maitred.core.units import Micros, from_seconds
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import BlockRanges, SessionBlockIds
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
_BLOCK = 64


class _TableProgram(msgspec.Struct):
    """A session or a sub-agent, as far as it has been read."""

    start: Micros
    parent: str
    last_end: Micros = 0
    """The latest request."""
    blocks: BlockRanges = BlockRanges()


def table_parser(header: str) -> RowParser:
    return _RequestTable(CsvColumns(header, *COLUMNS)).row


class _RequestTable:
    def __init__(self, columns: CsvColumns) -> None:
        self._columns = columns
        self._session, self._number = "", -1
        self._programs: dict[str, _TableProgram] = {}
        self._num_ids = 0
        """Blocks of the session so far: what is not shared gets new ids."""

    def row(self, line: str) -> TraceRow:
        session, sub, t, kind, model, prompt, answer, api, think, blocks, shared = self._columns.fields(line)
        if session != self._session:
            self._session, self._number, self._programs, self._num_ids = session, self._number + 1, {}, 0
        talk = self._programs.get(sub) or self._start_program(sub)
        at = talk.start + parse_seconds(t, "t")
        talk.blocks = self._next_blocks(
            talk.blocks, parse_tokens_or_zero(shared, "shared_prefix_blocks"), parse_tokens_or_zero(blocks, "blocks")
        )
        if prompt == "0" or answer == "0":
            raise NotReplayedError("a request without tokens", "it is not replayed")
        size = parse_tokens(prompt, "in")
        row = TraceRow(
            at,
            size,
            parse_tokens(answer, "out"),
            prefix=SessionBlockIds(talk.blocks, size, _BLOCK, self._number),
            stream=kind == "s",
            model=model,
            program=session + sub,
            parent_program=talk.parent,
            think_time=max(at - talk.last_end, 0) if think in ("", "None") else parse_seconds(think, "think_time"),
        )
        talk.last_end, talk.parent = at + (0 if api in ("", "None") else parse_seconds(api, "api_time")), ""
        return row

    def _start_program(self, sub: str) -> _TableProgram:
        above = sub.rpartition("/")[0]
        parent = self._programs.get(above) if sub else None
        began = parent.last_end if parent else 0
        talk = self._programs[sub] = _TableProgram(began, self._session + above if parent else "", last_end=began)
        return talk

    def _next_blocks(self, before: BlockRanges, shared: int, blocks: int) -> BlockRanges:
        kept = before.head(min(shared, blocks))
        new = blocks - len(kept)
        first, self._num_ids = self._num_ids + 1, self._num_ids + new
        return kept.append(((first, first + new - 1),)) if new else kept


class _RecordedCall(msgspec.Struct, gc=False):
    """A request, or with `requests` a sub-agent."""

    t: Seconds
    type: str = "n"
    model: str = ""
    input: int = msgspec.field(name="in", default=0)
    output: int = msgspec.field(name="out", default=0)
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    output_types: tuple[str, ...] = ()
    keep: int = 0
    new: tuple[tuple[int, int], ...] = ()
    requests: tuple[_RecordedCall, ...] | None = None


class _RecordedSession(msgspec.Struct, gc=False):
    id: str
    requests: tuple[_RecordedCall, ...]
    block_size: int = 64


@FORMATS.register("agentic")
class AgenticFormat(TraceFormat):
    """A session is a program, and so is each of its sub-agents (`trace_0003/1`: launched by the entry 1 of the session)."""

    description = "Recorded sessions of coding agents, with sub-agents and pauses (kv-cache-tester's, re-encoded)."
    times = "seconds"
    prompts_share = "block ids of 64, within a session"
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
            return table_parser(next(lines))
        numbers = count()
        return json_row_parser(
            _RecordedSession, self.example, lambda said: list(_SessionRows(said, next(numbers)).rows(said.requests, said.id, 0))
        )


class _SessionRows:
    """A session while its rows are made."""

    def __init__(self, said: _RecordedSession, number: int) -> None:
        if said.block_size < 1:
            raise RowError(f"block_size is {said.block_size}", "it must be at least 1")
        self._block = said.block_size
        self._number = number

    def rows(self, calls: Sequence[_RecordedCall], program: str, began: Micros) -> Iterator[TraceRow | RowError]:
        """The rows of a program that began at `began` on the session's clock, and those of its sub-agents among them."""
        blocks, ended = BlockRanges(), began
        for place, (call, later) in enumerate(_with_next_call(calls)):
            at = began + from_seconds(call.t)
            if call.requests is not None:
                yield from self._sub_agent(call.requests, f"{program}/{place}", at, program, max(at - ended, 0))
                continue
            blocks = blocks.head(call.keep).append(call.new)
            if not (0 < call.input <= MAX_TOKENS and 0 < call.output <= MAX_TOKENS):
                yield NotReplayedError(f"request {place} of {program} has no tokens", "it is not replayed")
                continue
            yield TraceRow(
                at,
                call.input,
                call.output,
                prefix=self._keys(blocks, call.input),
                conversation_prefix=self._conversation_prefix(call, blocks, later),
                stream=call.type == "s",
                model=call.model,
                program=program,
                think_time=max(at - ended, 0) if call.think_time is None else from_seconds(call.think_time),
            )
            ended = at + from_seconds(call.api_time or 0.0)

    def _sub_agent(
        self, calls: Sequence[_RecordedCall], program: str, began: Micros, parent: str, think: Micros
    ) -> Iterator[TraceRow | RowError]:
        """Its first row follows a request of its parent."""
        for row in self.rows(calls, program, began):
            if isinstance(row, TraceRow) and row.program == program and parent:
                yield replace(row, parent_program=parent, think_time=think)
                parent = ""
            else:
                yield row

    def _keys(self, blocks: BlockRanges, tokens: int) -> SessionBlockIds:
        return SessionBlockIds(blocks, tokens, self._block, self._number)

    def _conversation_prefix(
        self, call: _RecordedCall, blocks: BlockRanges, later: _RecordedCall | None
    ) -> SessionBlockIds | None:
        tokens = call.input + call.output
        if later is None or "thinking" in call.output_types or later.keep < len(blocks) or later.input < tokens:
            return None
        return self._keys(blocks.head(later.keep).append(later.new).head(tokens // self._block), tokens)


def _with_next_call(calls: Sequence[_RecordedCall]) -> list[tuple[_RecordedCall, _RecordedCall | None]]:
    """Each with the next one that is no sub-agent."""
    pairs: list[tuple[_RecordedCall, _RecordedCall | None]] = []
    later: _RecordedCall | None = None
    for call in reversed(calls):
        pairs.append((call, later))
        later = later if call.requests is not None else call
    return pairs[::-1]
