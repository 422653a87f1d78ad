"""KV blocks by BLIS's rules, where they differ from ours (`BlisPool`: how they are cached).

* A prompt whose every block is cached computes nothing: it enters on blocks that it does not own (so they may be evicted
  under it), and its first token comes out of a step that does no work for it. A real engine computes at least one token.
* Who is preempted finds its prompt again as far as it is cached, and nothing of its answer.
* The last token of an answer takes a block, if it needs one and one is free, and gives it back at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from maitred.compat.blis.block_pool import BlisPool
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv.block_manager import BlockManager
from maitred.kv.prefix_block_manager import PrefixBlockManager, SequenceBlocks, private_block_hashes
from maitred.kv.prefix_hit import NO_HIT, PrefixHit


class BlisBlockManager(PrefixBlockManager):
    """The KV blocks of one instance, as BLIS keeps its books."""

    __slots__ = ("_opened_for", "_pool", "_unowned")

    def __init__(self, cache: BlisPool) -> None:
        super().__init__(cache)
        self._pool = cache
        self._opened_for: set[RequestId] = set()
        """Sequences that have opened a block for the step about to be formed."""
        self._unowned: dict[RequestId, int] = {}
        """Tokens of KV at the beginning of a sequence that it uses and has no blocks for."""

    def unowned_tokens(self, seq: SequenceState) -> int:
        """Tokens of KV that `seq` uses and has no blocks for; negative if it has room for more tokens than it has computed."""
        return self._unowned.get(seq.request.id, 0)

    def blocks_held(self, seq: SequenceState, tokens: int) -> int:
        return self.blocks_for(tokens - self.unowned_tokens(seq))

    @property
    def must_form_step(self) -> bool:
        """Whether a step must be formed though nobody prefills and nobody can enter."""
        return False

    def find_cached(self, seq: SequenceState) -> PrefixHit:
        look = self._pool.probe(self._prompt_hashes(seq))
        return PrefixHit(look.num_cached * self.block_size, look.num_unreferenced) if look.num_cached else NO_HIT

    def try_admit(self, seq: SequenceState, found: PrefixHit, tokens: int) -> bool:
        """`seq` enters, uses what was found and computes `tokens` tokens more, if there is room. None: it has found its whole
        prompt, and owns nothing of it."""
        if self.blocks_for(tokens) + found.num_unreferenced > self.free:
            return False
        if tokens:
            self.admit(seq, found)
            self._fill_blocks(seq, found.num_tokens + tokens)
            return True
        self._blocks_of(seq).lock = self._pool.lock(())
        self._unowned[seq.request.id] = seq.num_tokens_to_prefill
        if not seq.num_preemptions:
            seq.num_cached_tokens = seq.num_tokens_to_prefill
        return True

    def try_grow(self, seq: SequenceState, start: int, tokens: int) -> bool:
        """`seq`, of which `start` tokens are computed, computes `tokens` more, if there is room."""
        if self.blocks_for(start + tokens) - self.blocks_for(start) > self.free:
            return False
        self._fill_blocks(seq, start + tokens)
        return True

    def _fill_blocks(self, seq: SequenceState, tokens: int) -> None:
        """The first `tokens` tokens of `seq` are computed when this step is over: it takes a block, says what it holds, and
        takes the next. So a copy that it evicts may be of what it has just said, which is then forgotten."""
        content, needed = self._blocks_of(seq), self.blocks_for(tokens)
        known = min(tokens // self.block_size, content.num_known)
        lock = self._assigned_lock(content, 0)
        self._commit(lock, content.block_hashes[: min(known, lock.num_committed + lock.num_private)])
        for held in range(lock.num_committed + lock.num_private + 1, needed + 1):
            self.reserve(1)
            self._commit(self._assigned_lock(content, held), content.block_hashes[: min(known, held)])

    def try_open_block(self, seq: SequenceState, tokens: int) -> bool:
        """`seq`, which owns `tokens` tokens and decodes, takes the block that its next token needs, if it needs one and one is
        free."""
        if tokens % self.block_size:
            return True
        if not self.free:
            return False
        self.reserve(1)
        self._num_opened += 1
        self._opened_for.add(seq.request.id)
        return True

    def release_waiting(self) -> bool:
        """Those who wait let go of what they hold. Whether anybody held anything."""
        return False

    def try_relieve(self) -> bool:
        """Nobody else runs, and yet blocks are lacking. Whether those who wait have let go of some."""
        return False

    def on_step_end(self, running: Iterable[tuple[SequenceState, int]]) -> None:
        """A step is over. `running`: who ran in it, in the order of admission, with the tokens that he owns."""

    def take_fetch_time(self) -> Micros:
        """How much longer the step about to be formed takes for what was fetched for it."""
        return 0

    def pause_decode(self, tokens: int) -> None:
        """A decoding sequence that owns `tokens` tokens stands still, until it joins again."""
        self._num_decodes -= 1
        self._openings_by_phase[(self._phase - tokens) % self.block_size] -= 1

    def run_steps(self, steps: int) -> None:
        super().run_steps(steps)
        self._opened_for.clear()

    def release_decoding(self, seq: SequenceState, tokens: int) -> None:
        opened = int(seq.request.id in self._opened_for)
        self._opened_for.discard(seq.request.id)
        self._num_opened -= opened
        tokens -= self.unowned_tokens(seq)
        BlockManager.release_decoding(self, seq, tokens)
        self._release(seq, tokens, opened)

    def release_prefilling(self, seq: SequenceState, tokens: int) -> None:
        super().release_prefilling(seq, tokens - self.unowned_tokens(seq))

    def keep_for_return(self, seq: SequenceState) -> None:
        pass  # what it has emitted is lost

    def _has_known_content(self, seq: SequenceState) -> bool:
        """Whether its blocks say what its tokens are."""
        return not self.unowned_tokens(seq)

    def _release(self, seq: SequenceState, tokens: int, opened: int) -> None:
        if self._has_known_content(seq):
            super()._release(seq, tokens, opened)
        else:
            content = self._blocks_of(seq)
            lock, content.lock = self._assigned_lock(content, self.blocks_for(tokens) + opened), None
            self.cache.release_private(lock, tokens // self.block_size - lock.num_committed, list)
            self.free = self.cache.free
        self._unowned.pop(seq.request.id, None)

    def _prompt_hashes(self, seq: SequenceState) -> list[int]:
        """The keys of its full blocks."""
        return self._blocks_of(seq).block_hashes[: seq.request.prompt_tokens // self.block_size]

    def _blocks_of(self, seq: SequenceState) -> SequenceBlocks:
        """A prompt of which nothing is known is like no other, and yet has blocks that it may find again."""
        content = super()._blocks_of(seq)
        full = seq.request.prompt_tokens // self.block_size
        if content.num_known < full:
            content.block_hashes += private_block_hashes(seq, content.num_known, full)
            content.num_known = full
        return content
