"""agentic: recorded sessions of coding agents (callanjfox/kv-cache-tester, Apache-2.0), in two re-encodings.

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

from maitred.units import Micros, from_seconds
from maitred.workload.block_ranges import BlockRanges, RangeIds
from maitred.workload.formats.agentic_table import COLUMNS, table
from maitred.workload.json_rows import Seconds, keys_of, objects
from maitred.workload.lengths import MOST_TOKENS
from maitred.workload.lines import Lines
from maitred.workload.row import FORMATS, NotReplayedError, Row, RowError, RowParser, TraceFormat, split


class _Call(msgspec.Struct, gc=False):
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
    requests: tuple[_Call, ...] | None = None


class _Session(msgspec.Struct, gc=False):
    id: str
    requests: tuple[_Call, ...]
    block_size: int = 64


@FORMATS.register("agentic")
class Agentic(TraceFormat):
    """A session is a program, and so is each of its sub-agents (`trace_0003/1`: launched by the entry 1 of the session)."""

    about = "Recorded sessions of coding agents, with sub-agents and pauses (kv-cache-tester's, re-encoded)."
    example = (
        '{"id": "trace_0001", "block_size": 64, "requests": [{"t": 0.0, "in": 700, "out": 52, "keep": 0, "new": [[1, 10]]}]}'
    )
    by_session = True
    thinks = True
    disorder = sys.maxsize

    def recognises(self, first_line: str) -> bool:
        return {"id", "requests", "block_size"} <= keys_of(first_line) or set(COLUMNS) <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        if not lines.first.lstrip().startswith("{"):
            return table(next(lines))
        numbers = count()
        return objects(_Session, self.example, lambda said: list(_Talk(said, next(numbers)).rows(said.requests, said.id, 0)))


class _Talk:
    """A session while its rows are made."""

    def __init__(self, said: _Session, number: int) -> None:
        if said.block_size < 1:
            raise RowError(f"block_size is {said.block_size}", "it must be at least 1")
        self._block = said.block_size
        self._number = number

    def rows(self, calls: Sequence[_Call], program: str, began: Micros) -> Iterator[Row | RowError]:
        """The rows of a program that began at `began` on the session's clock, and those of its sub-agents among them."""
        blocks, ended = BlockRanges(), began
        for place, (call, later) in enumerate(_with_next(calls)):
            at = began + from_seconds(call.t)
            if call.requests is not None:
                yield from self._sub_agent(call.requests, f"{program}/{place}", at, program, max(at - ended, 0))
                continue
            blocks = blocks.head(call.keep).then(call.new)
            if not (0 < call.input <= MOST_TOKENS and 0 < call.output <= MOST_TOKENS):
                yield NotReplayedError(f"request {place} of {program} has no tokens", "it is not replayed")
                continue
            yield Row(
                at,
                call.input,
                call.output,
                prefix=self._keys(blocks, call.input),
                whole=self._whole(call, blocks, later),
                stream=call.type == "s",
                model=call.model,
                program=program,
                think=max(at - ended, 0) if call.think_time is None else from_seconds(call.think_time),
            )
            ended = at + from_seconds(call.api_time or 0.0)

    def _sub_agent(
        self, calls: Sequence[_Call], program: str, began: Micros, parent: str, think: Micros
    ) -> Iterator[Row | RowError]:
        """Its first row follows a request of its parent."""
        for row in self.rows(calls, program, began):
            if isinstance(row, Row) and row.program == program and parent:
                yield replace(row, parent=parent, think=think)
                parent = ""
            else:
                yield row

    def _keys(self, blocks: BlockRanges, tokens: int) -> RangeIds:
        return RangeIds(blocks, tokens, self._block, self._number)

    def _whole(self, call: _Call, blocks: BlockRanges, later: _Call | None) -> RangeIds | None:
        tokens = call.input + call.output
        if later is None or "thinking" in call.output_types or later.keep < len(blocks) or later.input < tokens:
            return None
        return self._keys(blocks.head(later.keep).then(later.new).head(tokens // self._block), tokens)


def _with_next(calls: Sequence[_Call]) -> list[tuple[_Call, _Call | None]]:
    """Each with the next one that is no sub-agent."""
    pairs: list[tuple[_Call, _Call | None]] = []
    later: _Call | None = None
    for call in reversed(calls):
        pairs.append((call, later))
        later = later if call.requests is not None else call
    return pairs[::-1]
