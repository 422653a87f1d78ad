"""`requests.csv` of the agentic set: a request per line, sessions one after another, without block ids.

What it tells of the content of a prompt is how many leading blocks it shares with the one before it in its conversation. It
does not tell when a sub-agent (`sub`: `/1`, launched by the entry 1 of the session) began: here, when the request before it
had ended. Its times count from its own beginning.
"""

from __future__ import annotations

import msgspec

from maitred.units import Micros
from maitred.workload.block_ranges import BlockRanges, RangeIds
from maitred.workload.row import Columns, NotReplayedError, Row, RowParser, at_least_0, seconds, tokens

COLUMNS = ("trace", "sub", "t", "type", "model", "in", "out", "api_time", "think_time", "blocks", "shared_prefix_blocks")
_BLOCK = 64


class _Talk(msgspec.Struct):
    """A session or a sub-agent, as far as it has been read."""

    began: Micros
    parent: str
    ended: Micros = 0
    """The latest request."""
    blocks: BlockRanges = BlockRanges()


def table(header: str) -> RowParser:
    return _Table(Columns(header, *COLUMNS)).row


class _Table:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._session, self._number = "", -1
        self._talks: dict[str, _Talk] = {}
        self._ids = 0
        """Blocks of the session so far: what is not shared gets new ids."""

    def row(self, line: str) -> Row:
        session, sub, t, kind, model, prompt, answer, api, think, blocks, shared = self._columns.pick(line)
        if session != self._session:
            self._session, self._number, self._talks, self._ids = session, self._number + 1, {}, 0
        talk = self._talks.get(sub) or self._begun(sub)
        at = talk.began + seconds(t, "t")
        talk.blocks = self._grown(talk.blocks, at_least_0(shared, "shared_prefix_blocks"), at_least_0(blocks, "blocks"))
        if prompt == "0" or answer == "0":
            raise NotReplayedError("a request without tokens", "it is not replayed")
        size = tokens(prompt, "in")
        row = Row(
            at,
            size,
            tokens(answer, "out"),
            prefix=RangeIds(talk.blocks, size, _BLOCK, self._number),
            stream=kind == "s",
            model=model,
            program=session + sub,
            parent=talk.parent,
            think=max(at - talk.ended, 0) if think in ("", "None") else seconds(think, "think_time"),
        )
        talk.ended, talk.parent = at + (0 if api in ("", "None") else seconds(api, "api_time")), ""
        return row

    def _begun(self, sub: str) -> _Talk:
        above = sub.rpartition("/")[0]
        parent = self._talks.get(above) if sub else None
        began = parent.ended if parent else 0
        talk = self._talks[sub] = _Talk(began, self._session + above if parent else "", ended=began)
        return talk

    def _grown(self, before: BlockRanges, shared: int, blocks: int) -> BlockRanges:
        kept = before.head(min(shared, blocks))
        new = blocks - len(kept)
        first, self._ids = self._ids + 1, self._ids + new
        return kept.then(((first, first + new - 1),)) if new else kept
