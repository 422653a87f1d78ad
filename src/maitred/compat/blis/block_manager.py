"""BlisBlockManager: the KV blocks of an instance by BLIS's rules, where they differ from ours.

* A prompt that is cached as a whole computes nothing: it is admitted on blocks that it does not own (so they may be evicted
  under it), and its first token comes out of a step that does no work for it. A real engine computes at least one token.
* A preempted sequence finds its prompt again as far as it is cached, and nothing of its answer.
* The last token of an answer takes a block, if it needs one and one is free, and gives it back at once.

How blocks are cached is `BlisPool`'s, and `TieredBlockManager` adds main memory as a second tier.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maitred.compat.blis.block_pool import BlisPool
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv.key_ranges import join_keys
from maitred.kv.prefix_block_manager import PrefixBlockManager, SequenceBlocks, private_block_hashes
from maitred.kv.prefix_cache import PrefixHit


class BlisBlockManager(PrefixBlockManager):
    """The KV blocks of one instance, as BLIS counts them."""

    __slots__ = ("_pool", "_unowned")

    def __init__(self, cache: BlisPool) -> None:
        super().__init__(cache)
        self._pool = cache
        self._unowned: dict[RequestId, int] = {}

    def unowned_tokens(self, seq: SequenceState) -> int:
        """Return the tokens of KV that `seq` uses and has no blocks for; negative if it has room for more than it uses."""
        return self._unowned.get(seq.request.id, 0)

    def blocks_held(self, seq: SequenceState, tokens: int) -> int:
        return self.blocks_for(tokens - self.unowned_tokens(seq))

    @property
    def must_form_step(self) -> bool:
        """Whether a step must be planned anew though no sequence prefills and none can be admitted."""
        return False

    def find_cached(self, seq: SequenceState) -> PrefixHit:
        return self._pool.probe(self._prompt_hashes(seq))

    def try_admit(self, seq: SequenceState, hit: PrefixHit, tokens: int) -> bool:
        """Lock what was found for `seq`, and take blocks for `tokens` tokens more; return False if there is no room. With 0
        tokens the whole prompt was found, and `seq` owns nothing of it."""
        if self.blocks_for(tokens) + hit.num_unreferenced > self.free:
            return False
        if tokens:
            self.admit(seq, hit)
            self._fill_blocks(seq, hit.num_blocks * self.block_size + tokens)
            return True
        self._blocks_of(seq).lock = self._pool.lock(())
        self._unowned[seq.request.id] = seq.num_tokens_to_prefill
        if not seq.num_preemptions:
            seq.num_cached_tokens = seq.num_tokens_to_prefill
        return True

    def try_grow(self, seq: SequenceState, start: int, tokens: int) -> bool:
        """Take blocks for `tokens` tokens of `seq`, of which `start` are computed; return False if there is no room."""
        if self.blocks_for(start + tokens) - self.blocks_for(start) > self.free:
            return False
        self._fill_blocks(seq, start + tokens)
        return True

    def _fill_blocks(self, seq: SequenceState, tokens: int) -> None:
        """Take blocks for the first `tokens` tokens of `seq`, which are computed when the step has ended: it takes a block,
        commits it, and takes the next. So it may evict a copy of what it has just committed, which is then forgotten."""
        content, needed = self._blocks_of(seq), self.blocks_for(tokens)
        known = min(tokens // self.block_size, content.num_known)
        lock = self._assigned_lock(content, 0)
        self._commit(lock, content.block_hashes, min(known, lock.num_committed + lock.num_private))
        for held in range(lock.num_committed + lock.num_private + 1, needed + 1):
            self.reserve(1)
            self._commit(self._assigned_lock(content, held), content.block_hashes, min(known, held))

    def try_open_block(self, seq: SequenceState, tokens: int) -> bool:
        """Take the block that the next token of `seq`, which owns `tokens` tokens and decodes, needs, if it needs one; return
        False if none is free."""
        if tokens % self.block_size:
            return True
        if not self.free:
            return False
        self.open_block(seq)
        return True

    def try_open_all(self) -> bool:
        """Take the blocks that the sequences that decode need for their next tokens, without a look at each; return False, and
        take none, if not all are free or their order matters."""
        if not self.max_steps(1):
            return False
        self.reserve_next_step()
        return True

    def release_waiting(self) -> bool:
        """Release what waiting sequences hold. Return whether any of them held anything."""
        return False

    def try_relieve(self) -> bool:
        """Try to find blocks for a sequence that runs alone and lacks them. Return whether waiting ones have released some."""
        return False

    def on_step_end(self, running: Iterable[tuple[SequenceState, int]]) -> None:
        """Note that a step has ended. `running`: its sequences in the order of admission, with the tokens that they own."""

    def take_fetch_time(self) -> Micros:
        """Return the µs that the step about to be planned takes longer for what was fetched for it."""
        return 0

    def release_decoding(self, seq: SequenceState, tokens: int) -> None:
        super().release_decoding(seq, tokens - self.unowned_tokens(seq))

    def release_prefilling(self, seq: SequenceState, tokens: int) -> None:
        super().release_prefilling(seq, tokens - self.unowned_tokens(seq))

    def keep_for_return(self, seq: SequenceState, num_unknown: int) -> None:
        """Do nothing: the answer of a preempted sequence is lost."""

    def _has_known_content(self, seq: SequenceState) -> bool:
        """Return whether the blocks of `seq` hold what its tokens are."""
        return not self.unowned_tokens(seq)

    def _release(self, seq: SequenceState, tokens: int, opened: int) -> None:
        if self._has_known_content(seq):
            super()._release(seq, tokens, opened)
        else:
            content = self._blocks_of(seq)
            lock, content.lock = self._assigned_lock(content, self.blocks_for(tokens) + opened), None
            self.cache.release_private(lock, tokens // self.block_size - lock.num_committed)
            self.free = self.cache.free
        self._unowned.pop(seq.request.id, None)

    def _prompt_hashes(self, seq: SequenceState) -> Sequence[int]:
        """Return the hashes of the full blocks of the prompt."""
        return self._blocks_of(seq).block_hashes[: seq.request.prompt_tokens // self.block_size]

    def _blocks_of(self, seq: SequenceState) -> SequenceBlocks:
        """Return the blocks of `seq`. A prompt of unknown content gets its own hashes, by which only `seq` finds it again."""
        content = super()._blocks_of(seq)
        full = seq.request.prompt_tokens // self.block_size
        if content.num_known < full:
            content.block_hashes = join_keys([content.block_hashes, private_block_hashes(seq, content.num_known, full)])
            content.num_known = full
        return content
