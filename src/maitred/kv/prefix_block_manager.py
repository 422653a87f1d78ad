"""PrefixBlockManager: block counts over a prefix cache.

A sequence that enters uses the leading blocks of its prompt that are cached, and computes the rest. Its blocks say what they
hold as soon as the step is formed that computes them, so that one admitted later in the same step may share them. What it
emits nobody else will ask for, as a rule, yet it fills blocks, which take their turn in eviction: they are buried when it
leaves. One that is preempted comes back for them, and finds them by keys of its own, as far as they are still there. And where
somebody will continue the conversation (`expect`), the answer's blocks are published as it leaves.
"""

from __future__ import annotations

from typing import Any

from maitred.core.errors import InvariantError
from maitred.core.request import PrefixKeys, RequestId
from maitred.core.sequence import SequenceState
from maitred.kv.block_hashes import apply_namespace, sequence_block_hashes
from maitred.kv.block_manager import BlockManager
from maitred.kv.prefix_cache import CacheLock, PrefixCache
from maitred.kv.prefix_hit import NO_HIT, PrefixHit

_PRIVATE_SALT = 0x6F776E
"""Marks the keys of what only its sequence knows. Hashes of ints are the same in every process."""


def private_block_hashes(seq: SequenceState, first: int, end: int) -> list[int]:
    """Keys of its blocks from `first` to before `end`, which nobody else has."""
    return [hash((_PRIVATE_SALT, seq.arrival_index, block)) for block in range(first, end)]


class SequenceBlocks:
    """What a sequence says, block by block."""

    will_return: bool = False
    """It is about to leave, and will come back for what it has computed."""

    def __init__(self, chain: list[int]) -> None:
        self.block_hashes = chain
        """Keys: of its prompt as far as it is known, and then its own, where they are needed."""
        self.num_known = len(chain)
        """How many of its prompt."""
        self.conversation_prefix: PrefixKeys | None = None
        """What prompt and answer say together, for those who continue it; None: nobody will."""
        self.lock: CacheLock | None = None
        """While it is in the batch."""


class PrefixBlockManager(BlockManager):
    """The KV blocks of one instance, in `cache`, which nobody else may change."""

    __slots__ = ("_num_opened", "_num_unassigned", "_sequence_blocks", "cache")

    def __init__(self, cache: PrefixCache[Any]) -> None:
        super().__init__(cache.total, cache.block_size)
        self.cache = cache
        self._sequence_blocks: dict[RequestId, SequenceBlocks] = {}
        self._num_unassigned = 0
        """Blocks that decoding sequences have opened and that are nobody's in particular yet."""
        self._num_opened = 0
        """Of these, the ones that are for the step about to be formed."""

    @property
    def free_committed(self) -> int:
        return self.free + self._num_opened

    def reserve(self, blocks: int) -> None:
        self.cache.reserve(blocks)
        self._num_unassigned += blocks
        self.free -= blocks

    def reserve_next_step(self) -> None:
        """Take now what the decoding sequences open in the next step: they come before those who wait, and evict first."""
        opened = self.decode_blocks(1) - self._num_opened
        self.reserve(opened)
        self._num_opened += opened

    def run_steps(self, steps: int) -> None:
        opened = self.decode_blocks(steps) - self._num_opened
        self.free += self._num_opened
        super().run_steps(steps)
        self.cache.reserve(opened)
        self._num_unassigned += opened
        self._num_opened = 0

    def max_steps(self, limit: int) -> int:
        return self.max_steps_with(self.free + self._num_opened, limit)

    def expect_continuation(self, seq: SequenceState, conversation_prefix: PrefixKeys) -> None:
        """What `seq` will have said in all: others may ask for it when it is over."""
        self._blocks_of(seq).conversation_prefix = conversation_prefix

    def find_cached(self, seq: SequenceState) -> PrefixHit:
        """What is here already of `seq`, which wants to enter."""
        usable = (seq.num_tokens_to_prefill - 1) // self.block_size
        chain = self._all_block_hashes(seq, usable) if seq.num_preemptions else self._blocks_of(seq).block_hashes
        look = self.cache.probe(chain[:usable])
        return PrefixHit(look.num_cached * self.block_size, look.num_unreferenced) if look.num_cached else NO_HIT

    def admit(self, seq: SequenceState, hit: PrefixHit) -> None:
        """`seq` enters, and uses what was found."""
        content = self._blocks_of(seq)
        cached = content.block_hashes[: hit.num_tokens // self.block_size]
        content.lock = self.cache.lock(cached, priority=seq.request.priority)
        content.will_return = False
        self.free -= hit.num_unreferenced
        if not seq.num_preemptions:
            seq.num_cached_tokens = hit.num_tokens

    def fill(self, seq: SequenceState, tokens: int) -> None:
        """The first `tokens` tokens of `seq` are computed when this step is over; their blocks are taken."""
        content = self._blocks_of(seq)
        claimed = self._assigned_lock(content, self.blocks_for(tokens))
        self._commit(claimed, content.block_hashes[: min(tokens // self.block_size, content.num_known)])

    def keep_for_return(self, seq: SequenceState) -> None:
        """`seq` is about to leave and will come back: let it find what it has computed, if that is still here."""
        self._blocks_of(seq).will_return = True

    def release_decoding(self, seq: SequenceState, tokens: int) -> None:
        opened = 1 if self._num_opened and tokens % self.block_size == 0 else 0
        self._num_opened -= opened
        super().release_decoding(seq, tokens)
        self._release(seq, tokens, opened)

    def release_prefilling(self, seq: SequenceState, tokens: int) -> None:
        self._release(seq, tokens, 0)

    def _release(self, seq: SequenceState, tokens: int, opened: int) -> None:
        """It holds `tokens` tokens, and `opened` blocks more in which there is nothing yet."""
        content, full = self._blocks_of(seq), tokens // self.block_size
        lock, content.lock = self._assigned_lock(content, self.blocks_for(tokens) + opened), None
        if content.will_return or content.conversation_prefix is not None:
            self._commit(lock, self._all_block_hashes(seq, full)[:full])
            self.cache.release(lock)
        else:
            self._commit(lock, content.block_hashes[: min(full, content.num_known)])
            first = lock.num_committed
            self.cache.release_private(lock, full - first, lambda: self._all_block_hashes(seq, full)[first:full])
        self.free = self.cache.free

    def forget(self, seq: SequenceState) -> None:
        """`seq` will not come back."""
        self._sequence_blocks.pop(seq.request.id, None)

    def apply_evictions(self) -> None:
        """Whoever looks at what is cached sees it as it is."""
        self.cache.apply_evictions()

    def max_unchanged_steps(self, limit: int) -> int:
        """The most steps, from 1 to `limit`, that change nothing that a waiting sequence could find here."""
        return max(1, self.max_steps_with(self.cache.free_uncached + self._num_opened, limit)) if self._num_decodes else limit

    def check(self, held: int) -> None:
        self.cache.check()
        locks = [content.lock for content in self._sequence_blocks.values() if content.lock is not None]
        if held + self._num_opened != sum(lock.num_committed + lock.num_private for lock in locks) + self._num_unassigned:
            raise InvariantError(f"KV blocks: sequences say {held}, their locks and {self._num_unassigned} unclaimed differ")
        if (
            self.free != self.cache.free
            or sum(self._openings_by_phase) != self._num_decodes
            or min(self._openings_by_phase) < 0
        ):
            raise InvariantError(f"KV blocks: {self.free} free or {self._openings_by_phase} open is not what the cache says")

    def _blocks_of(self, seq: SequenceState) -> SequenceBlocks:
        content = self._sequence_blocks.get(seq.request.id)
        if content is None:
            content = self._sequence_blocks[seq.request.id] = SequenceBlocks(list(sequence_block_hashes(seq, self.cache)))
        return content

    def _all_block_hashes(self, seq: SequenceState, blocks: int) -> list[int]:
        """At least the first `blocks` keys of what `seq` says; its own, where nobody knows others."""
        content = self._blocks_of(seq)
        chain = content.block_hashes
        if content.conversation_prefix is not None and len(chain) < blocks:
            keys = apply_namespace(content.conversation_prefix.block_keys(self.block_size), seq.request.cache_namespace)
            chain.extend(keys[len(chain) : blocks])
        chain.extend(private_block_hashes(seq, len(chain), blocks))
        return chain

    def _assigned_lock(self, content: SequenceBlocks, blocks: int) -> CacheLock:
        """The lock, with `blocks` blocks."""
        lock = content.lock
        assert lock is not None
        missing = blocks - lock.num_committed - lock.num_private
        if missing > 0:
            self.cache.assign(lock, missing)
            self._num_unassigned -= missing
        return lock

    def _commit(self, lock: CacheLock, chain: list[int]) -> None:
        if len(chain) > lock.num_committed:
            self.cache.commit_blocks(lock, chain[lock.num_committed :])
            self.free = self.cache.free  # a radix tree gives back what it had twice
