"""KV blocks by BLIS's rules, where they differ from ours (`BlisPool`: how they are cached).

* A prompt whose every block is cached computes nothing: it enters on blocks that it does not own (so they may be evicted
  under it), and its first token comes out of a step that does no work for it. A real engine computes at least one token.
* Who is preempted finds its prompt again as far as it is cached, and nothing of its answer.
* The last token of an answer takes a block, if it needs one and one is free, and gives it back at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from maitred.kv.blis_pool import BlisPool
from maitred.kv.counts import BlockCounts
from maitred.kv.finds import NOTHING, Found
from maitred.kv.prefixed import Content, PrefixedBlocks, own_keys
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class BlisBlocks(PrefixedBlocks):
    """The KV blocks of one instance, as BLIS keeps its books."""

    __slots__ = ("_openers", "_pool")

    def __init__(self, cache: BlisPool) -> None:
        super().__init__(cache)
        self._pool = cache
        self._openers: set[RequestId] = set()
        """Who has opened a block for the step about to be formed."""

    @property
    def restless(self) -> bool:
        """Whether a step must be formed though nobody prefills and nobody can enter."""
        return False

    def find(self, seq: Seq) -> Found:
        look = self._pool.look(self._prompt(seq))
        return Found(look.cached * self.block_size, look.idle) if look.cached else NOTHING

    def enter(self, seq: Seq, found: Found, tokens: int) -> bool:
        """`seq` enters, uses what was found and computes `tokens` tokens more, if there is room. None: it has found its whole
        prompt, and owns nothing of it."""
        if self.blocks(tokens) + found.idle > self.free:
            return False
        if tokens:
            self.admit(seq, found)
            self._fill(seq, found.tokens + tokens)
            return True
        self._content(seq).lock = self._pool.lock(())
        seq.borrowed = seq.target
        if not seq.preemptions:
            seq.cached = seq.target
        return True

    def grow(self, seq: Seq, start: int, tokens: int) -> bool:
        """`seq`, of which `start` tokens are computed, computes `tokens` more, if there is room."""
        if self.blocks(start + tokens) - self.blocks(start) > self.free:
            return False
        self._fill(seq, start + tokens)
        return True

    def _fill(self, seq: Seq, tokens: int) -> None:
        """The first `tokens` tokens of `seq` are computed when this step is over: it takes a block, says what it holds, and
        takes the next. So a copy that it evicts may be of what it has just said, which is then forgotten."""
        content, needed = self._content(seq), self.blocks(tokens)
        known = min(tokens // self.block_size, content.known)
        lock = self._claimed(content, 0)
        self._publish(lock, content.chain[: min(known, lock.published + lock.plain)])
        for held in range(lock.published + lock.plain + 1, needed + 1):
            self.take(1)
            self._publish(self._claimed(content, held), content.chain[: min(known, held)])

    def open_for(self, seq: Seq, tokens: int) -> bool:
        """`seq`, which owns `tokens` tokens and decodes, takes the block that its next token needs, if it needs one and one is
        free."""
        if tokens % self.block_size:
            return True
        if not self.free:
            return False
        self.take(1)
        self._opened += 1
        self._openers.add(seq.request.id)
        return True

    def yield_held(self) -> bool:
        """Those who wait let go of what they hold. Whether anybody held anything."""
        return False

    def relieved(self) -> bool:
        """Nobody else runs, and yet blocks are lacking. Whether those who wait have let go of some."""
        return False

    def over(self, running: Iterable[tuple[Seq, int]]) -> None:
        """A step is over. `running`: who ran in it, in the order of admission, with the tokens that he owns."""

    def charge(self) -> Micros:
        """How much longer the step about to be formed takes for what was fetched for it."""
        return 0

    def hold(self, tokens: int) -> None:
        """A decoding sequence that owns `tokens` tokens stands still, until it joins again."""
        self._decoders -= 1
        self._opening[(self._phase - tokens) % self.block_size] -= 1

    def run(self, steps: int) -> None:
        super().run(steps)
        self._openers.clear()

    def leave(self, seq: Seq, tokens: int) -> None:
        opened = int(seq.request.id in self._openers)
        self._openers.discard(seq.request.id)
        self._opened -= opened
        BlockCounts.leave(self, seq, tokens)
        self._let_go(seq, tokens, opened)

    def give_back(self, seq: Seq, tokens: int) -> None:
        super().give_back(seq, tokens - seq.borrowed)

    def returns(self, seq: Seq) -> None:
        pass  # what it has emitted is lost

    def _named(self, seq: Seq) -> bool:
        """Whether its blocks say what its tokens are."""
        return not seq.borrowed

    def _let_go(self, seq: Seq, tokens: int, opened: int) -> None:
        if self._named(seq):
            super()._let_go(seq, tokens, opened)
            return
        content = self._content(seq)
        lock, content.lock = self._claimed(content, self.blocks(tokens) + opened), None
        self.cache.bury(lock, tokens // self.block_size - lock.published, list)
        self.free = self.cache.free

    def _prompt(self, seq: Seq) -> list[int]:
        """The keys of its full blocks."""
        return self._content(seq).chain[: seq.request.prompt_tokens // self.block_size]

    def _content(self, seq: Seq) -> Content:
        """A prompt of which nothing is known is like no other, and yet has blocks that it may find again."""
        content = super()._content(seq)
        full = seq.request.prompt_tokens // self.block_size
        if content.known < full:
            content.chain += own_keys(seq, content.known, full)
            content.known = full
        return content
