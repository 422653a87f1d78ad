"""The KV blocks of one instance that has a prefix cache: which of them a sequence finds, fills and leaves behind.

`PrefixBlockManager` is a `BlockManager` over a prefix cache. A sequence that is admitted uses the leading blocks of its prompt
that are cached, and computes the rest. The answer fills blocks, too, which are evicted in their turn. They are committed for
two kinds of requests only: a preempted sequence, which comes back for what it has computed, and those that will continue the
conversation (`expect_continuation`).

Example, in blocks of 16 tokens: a prompt of 100 tokens with 4 cached blocks locks these, and takes 3 blocks for its other 36
tokens. When it has been computed, 6 blocks are committed; the 7th is partial. An answer of 40 tokens makes it 139 tokens of KV
in 9 blocks, of which the 2 that are full of the answer are released as private ones.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maitred.core.errors import InvariantError
from maitred.core.request import PrefixKeys, RequestId
from maitred.core.sequence import SequenceState
from maitred.kv.block_hashes import apply_namespace, sequence_block_hashes
from maitred.kv.block_manager import BlockManager
from maitred.kv.host_tier import HostTier
from maitred.kv.key_ranges import join_keys, part_of
from maitred.kv.prefix_cache import CacheLock, PrefixCache, PrefixHit

_PRIVATE_SALT = 0x6F776E
"""Marks the hashes of content that no other sequence has. Hashes of ints are the same in every process."""


def private_block_hashes(seq: SequenceState, first: int, end: int) -> list[int]:
    """Return hashes for the blocks of `seq` from `first` to before `end` that no other sequence has."""
    return [hash((_PRIVATE_SALT, seq.arrival_index, block)) for block in range(first, end)]


class SequenceBlocks:
    """The content of a sequence, block by block."""

    will_return: bool = False
    """Whether it is about to be preempted, and will come back for what it has computed."""
    is_discarded: bool = False
    """Whether it is about to be preempted, and what it has not committed is lost."""
    num_unknown: int = 0
    """Tokens at its end whose content is not known when it is preempted."""

    def __init__(self, block_hashes: Sequence[int]) -> None:
        self.block_hashes = block_hashes
        """Hashes of the prompt as far as they are known, and then private ones as far as they are needed. Not to be changed in
        place: the sequence has the same object."""
        self.num_known = len(block_hashes)
        """Blocks of the prompt with known hashes."""
        self.conversation_prefix: PrefixKeys | None = None
        """Content of prompt and answer together, if later requests will continue it."""
        self.lock: CacheLock | None = None
        """The lock of the sequence while it is in the batch, else None."""


class PrefixBlockManager(BlockManager):
    """The KV blocks of one instance, in `cache`, which only this object may change."""

    __slots__ = ("_sequence_blocks", "cache", "host")

    def __init__(self, cache: PrefixCache[Any]) -> None:
        super().__init__(cache.total, cache.block_size)
        self.cache = cache
        self.host: HostTier | None = None
        """What keeps evicted blocks, or None."""
        self._sequence_blocks: dict[RequestId, SequenceBlocks] = {}

    @property
    def num_fetched_blocks(self) -> int:
        return 0 if self.host is None else self.host.num_loaded

    def reserve(self, blocks: int) -> None:
        self.cache.reserve(blocks)
        self._free -= blocks

    def reserve_next_step(self) -> None:
        """Reserve what the decoding sequences open in the next step: they come before those that wait, and evict first."""
        opened = self.decode_blocks(1) - self._num_opened
        if opened:
            self.reserve(opened)
            self._num_opened += opened

    def run_steps(self, steps: int) -> None:
        self._uncounted += steps  # which are counted at once, as the cache evicts as they go: `_free` is `free` in this class
        opened = self._count_steps()
        if opened:
            self.cache.reserve(opened)

    def expect_continuation(self, seq: SequenceState, conversation_prefix: PrefixKeys) -> None:
        """Keep what `seq` computes, prompt and answer, for later requests that continue it."""
        self._blocks_of(seq).conversation_prefix = conversation_prefix

    def find_cached(self, seq: SequenceState) -> PrefixHit:
        """Return the cached prefix of `seq`, which is to be admitted. At least one token is left to compute."""
        usable = (seq.num_tokens_to_prefill - 1) // self.block_size
        hashes = self._all_block_hashes(seq, usable) if seq.num_preemptions else self._blocks_of(seq).block_hashes
        hashes = hashes if len(hashes) <= usable else hashes[:usable]
        hit = self.cache.probe(hashes)
        if self.host is None or seq.transferred_kv_tokens:
            return hit
        return PrefixHit(hit.num_blocks, hit.num_unreferenced, self.host.count_leading(hashes, hit.num_blocks))

    def admit(self, seq: SequenceState, hit: PrefixHit) -> None:
        """Lock what `find_cached` has found for `seq`, and load what the host has of it."""
        content = self._blocks_of(seq)
        content.lock = self.cache.lock(part_of(content.block_hashes, 0, hit.num_blocks), priority=seq.request.priority)
        content.will_return, content.num_unknown = False, 0
        self._free -= hit.num_unreferenced
        if not seq.num_preemptions:
            seq.num_cached_tokens = (hit.num_blocks + hit.num_in_host) * self.block_size
        if hit.num_in_host:
            assert self.host is not None
            self.host.load(content.block_hashes[hit.num_blocks : hit.num_blocks + hit.num_in_host])

    def fill(self, seq: SequenceState, tokens: int) -> None:
        """Assign reserved blocks to `seq` for its first `tokens` tokens, complete after the next step. Commit the full ones."""
        content, size = self._blocks_of(seq), self.block_size
        lock = self._assigned_lock(content, -(-tokens // size))
        full, known = tokens // size, content.num_known
        # Committed before it is computed (as in vLLM), so that a sequence admitted later in the same step may share it.
        self._commit(lock, content.block_hashes, known if known < full else full)

    def publish(self, seq: SequenceState, tokens: int) -> None:
        """As `fill`, once its first `tokens` tokens have been computed. Of a sequence that was preempted the output is
        committed, too: it has been computed like a prompt."""
        content, full = self._blocks_of(seq), tokens // self.block_size
        lock = self._assigned_lock(content, self.blocks_for(tokens))
        known = full if seq.num_preemptions else min(full, content.num_known)
        self._commit(lock, self._all_block_hashes(seq, known), known)

    def discard(self, seq: SequenceState, tokens: int) -> None:
        """Let `seq`, which is about to be preempted, keep no more than its first `tokens` tokens, for which it has blocks."""
        content, full = self._blocks_of(seq), tokens // self.block_size
        assert content.lock is not None
        self._commit(content.lock, self._all_block_hashes(seq, full), full)
        content.is_discarded = True

    def keep_for_return(self, seq: SequenceState, num_unknown: int) -> None:
        """Let `seq`, which is about to be preempted, find again what it has computed, if that is still cached then. The content
        of its last `num_unknown` tokens is not known yet, so a block with one of them is not cached."""
        content = self._blocks_of(seq)
        content.will_return, content.num_unknown = True, num_unknown

    def release_decoding(self, seq: SequenceState, tokens: int) -> None:
        opened = self._close_block(seq, tokens) if self._num_opened else 0
        self.stop_decode(tokens)
        self._release(seq, tokens, opened)

    def release_prefilling(self, seq: SequenceState, tokens: int) -> None:
        self._release(seq, tokens, 0)

    def release_reserved(self, seq: SequenceState, computed: int, reserved: int) -> None:
        content = self._blocks_of(seq)
        self._assigned_lock(content, self.blocks_for(reserved))
        self._release(seq, computed, 0)

    def _release(self, seq: SequenceState, tokens: int, opened: int) -> None:
        """Release the lock of `seq`: `tokens` tokens' worth, and `opened` blocks without content yet."""
        content = self._blocks_of(seq)
        full = (tokens - content.num_unknown) // self.block_size
        lock, content.lock = self._assigned_lock(content, self.blocks_for(tokens) + opened), None
        # Only content that a request may ask for needs hashes. For most answers none are ever made: their blocks stay private
        # and are only counted.
        if content.is_discarded:
            content.is_discarded = False
            self.cache.release(lock)
        elif content.will_return or (content.conversation_prefix is not None and not self._may_leave_out):
            self._commit(lock, self._all_block_hashes(seq, full), full)
            self.cache.release(lock)
        else:
            hashes, known = content.block_hashes, content.num_known
            if content.conversation_prefix is not None:
                hashes = self._known_block_hashes(seq, content, full)
                known = len(hashes)
            self._commit(lock, hashes, known if known < full else full)
            self.cache.release_private(lock, full - lock.num_committed)
        self._free = self.cache.free

    def forget(self, seq: SequenceState) -> None:
        """Drop what is known of `seq`, which has ended."""
        self._sequence_blocks.pop(seq.request_id, None)

    def blocks_freed_by(self, held: Sequence[tuple[SequenceState, int]]) -> int:
        """Return how many blocks would be free if some sequences were released, which are given with the blocks that each
        holds: its own, and those that it shares with none but them."""
        locks: list[CacheLock] = []
        own = 0
        for seq, blocks in held:
            lock = self._blocks_of(seq).lock
            assert lock is not None
            locks.append(lock)
            own += blocks - lock.num_committed
        return own + self.cache.num_held_by_alone(locks)

    def apply_evictions(self) -> None:
        """Apply the evictions that are pending. Call it before a queue policy looks at the cache."""
        self.cache.apply_evictions()

    def max_unchanged_steps(self, limit: int) -> int:
        """Return the largest number of steps, from 1 to `limit`, that changes nothing that a waiting sequence could find."""
        return max(1, self.max_steps_with(self.cache.free_uncached + self._num_opened, limit)) if self._num_decodes else limit

    def check(self, held: int) -> None:
        self.cache.check()
        locks = [content.lock for content in self._sequence_blocks.values() if content.lock is not None]
        unassigned = self.cache.num_unassigned
        if held + self._num_opened != sum(lock.num_committed + lock.num_private for lock in locks) + unassigned:
            raise InvariantError(f"KV blocks: sequences say {held}, their locks and {unassigned} unassigned differ")
        openings = self._openings_by_phase
        if self.free != self.cache.free or sum(openings) != self._num_decodes or min(openings) < 0:
            raise InvariantError(f"KV blocks: {self.free} free or {openings} open is not what the cache says")

    @property
    def _may_leave_out(self) -> bool:
        """Whether the end of a conversation that no request continues may be released without hashes: nothing tells it from
        blocks with hashes that are asked for by none. (A host keeps them, and a radix tree evicts them with the others.)"""
        return self.host is None and self.cache.is_blockwise

    def _blocks_of(self, seq: SequenceState) -> SequenceBlocks:
        content = self._sequence_blocks.get(seq.request_id)
        if content is None:
            content = self._sequence_blocks[seq.request_id] = SequenceBlocks(sequence_block_hashes(seq, self.cache))
        return content

    def _all_block_hashes(self, seq: SequenceState, blocks: int) -> Sequence[int]:
        """Return at least the first `blocks` hashes of the content of `seq`, private ones where no others are known."""
        content = self._blocks_of(seq)
        hashes = self._known_block_hashes(seq, content, blocks)
        if len(hashes) < blocks:
            hashes = join_keys([hashes, private_block_hashes(seq, len(hashes), blocks)])
        content.block_hashes = hashes
        return hashes

    def _known_block_hashes(self, seq: SequenceState, content: SequenceBlocks, blocks: int) -> Sequence[int]:
        """Return the hashes of the first `blocks` blocks of `seq`, whose content is `content`, as far as known, or more."""
        hashes = content.block_hashes
        if content.conversation_prefix is None or len(hashes) >= blocks:
            return hashes
        known = apply_namespace(content.conversation_prefix.block_keys(self.block_size), seq.request.cache_namespace)
        # A hash stands for all before it, so mostly the conversation begins with the prompt.
        if len(known) >= len(hashes) > 0 and known[len(hashes) - 1] == hashes[-1]:
            return known if len(known) <= blocks else part_of(known, 0, blocks)
        return join_keys([hashes, known[len(hashes) : blocks]])

    def _assigned_lock(self, content: SequenceBlocks, blocks: int) -> CacheLock:
        """Return the lock of a sequence, after `blocks` blocks in all have been assigned to it."""
        lock = content.lock
        assert lock is not None
        # The blocks that a sequence opened while it decoded are assigned here, all at once: until it leaves only their sum
        # counts.
        missing = blocks - lock.num_committed - lock.num_private
        if missing > 0:
            self.cache.assign(lock, missing)
        return lock

    def _commit(self, lock: CacheLock, block_hashes: Sequence[int], count: int) -> None:
        """Commit the first `count` blocks of `lock`, whose content is that of `block_hashes`, as far as that is not done."""
        if count > lock.num_committed:
            self.cache.commit_blocks(lock, part_of(block_hashes, lock.num_committed, count))
            self._free = self.cache.free  # a radix tree gives back what it had twice
