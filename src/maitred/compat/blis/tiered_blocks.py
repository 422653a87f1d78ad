"""TieredBlockManager: KV blocks by BLIS's rules, with main memory as a second tier (`HostMemory`).

What running sequences hold on the GPU is also in main memory:

    after a step:       every full block of every running sequence is copied there, in the order of admission; the least
                        recently copied or fetched ones make room
    before allocation:  blocks of the prompt that the GPU does not have any more are fetched from there

Copies cost nothing. Each block that is fetched prolongs the step for which it is fetched by a fixed time. To copy the same
blocks after each of a thousand steps is the same as to copy them once, after the last: what is kept, and in which order,
depends only on when each block was copied last. So an instance that skips steps copies once per run.

A sequence that wants blocks for its prompt first fetches those that the GPU does not have any more: each takes the free block
that is next to go, and becomes the last to go. Then, by BLIS's rules, which are not those of a real engine:

* What is fetched is held at once. If the rest does not fit, the sequence waits on with what it holds.
* What is fetched for a step is computed in it all the same; only a sequence that had to wait finds it done.
* The block that a fetched one replaces is not looked at. If it is another one of this prompt nothing is gained, and the
  sequence holds what was found by its positions, whatever is in them by now.
* A chunk that ends within a fetched block holds it as a whole, and the next one goes on in another block.

So a sequence may have room for other tokens than those it has computed: `unowned_tokens` says how many it lacks, negative if it
has too many. What it then computes is *misplaced*: such blocks have hashes of their own, which only a sequence finds that goes
the same way.

Example, in blocks of 16 tokens: of a prompt A B C D the GPU has A and C, and main memory has B. The prompt finds A, so it is to
be admitted with a chunk of 48 tokens. B is fetched into a blank block. Now A, B and C are found and held, and a block is taken
for D. The step computes 48 tokens as if nothing had been fetched, and takes the time of one fetch longer.

Waiting sequences may hold so much together that none can be admitted, while none runs that could give any back; or a sequence
that runs alone is preempted again and again. BLIS goes on like that for ever. Here the waiting ones release what they hold: at
once if no sequence runs, and if one runs alone and lacks blocks for the second time while none has left.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from maitred.compat.blis.block_manager import BlisBlockManager
from maitred.compat.blis.block_pool import BlisLock, BlisPool
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv.prefix_cache import PrefixHit


class HostMemory:
    """The main memory of one instance. Blocks are known by their hashes."""

    __slots__ = ("_blocks", "_capacity", "_fetch_time", "_num_fetched", "_num_unaccounted")

    def __init__(self, blocks: int, fetch_time: Micros) -> None:
        """`blocks` is the capacity, `fetch_time` the µs to fetch a block, at least 1."""
        self._capacity = blocks
        self._fetch_time = fetch_time
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Block hashes, the least recently used first."""
        self._num_fetched = 0
        self._num_unaccounted = 0
        """Blocks that were fetched for the step about to be planned."""

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._blocks

    def __iter__(self) -> Iterator[int]:
        """Return the block hashes, the least recently used first."""
        return iter(self._blocks)

    @property
    def num_fetched(self) -> int:
        """Blocks fetched so far."""
        return self._num_fetched

    def store(self, block_hashes: Iterable[int]) -> None:
        """Copy blocks from the GPU; the last of them is the most recently used."""
        blocks, room = self._blocks, self._capacity
        for block_hash in block_hashes:
            if block_hash in blocks:
                blocks.move_to_end(block_hash)
            else:
                blocks[block_hash] = None
                if len(blocks) > room:
                    blocks.popitem(last=False)

    def fetch(self, block_hash: int) -> None:
        """Copy a block to the GPU. Raises KeyError if it is not here."""
        self._blocks.move_to_end(block_hash)
        self._num_fetched += 1
        self._num_unaccounted += 1

    def take_fetch_time(self) -> Micros:
        """Return the µs that the step about to be planned takes longer for what was fetched for it."""
        time, self._num_unaccounted = self._num_unaccounted * self._fetch_time, 0
        return time


_MISPLACED_SALT = 0x617374726179
"""Marks the hashes of misplaced blocks."""


class TieredBlockManager(BlisBlockManager):
    """The KV blocks of one instance and its main memory. See `BlisBlockManager` for the methods."""

    __slots__ = ("_has_lacked_blocks", "_host_memory", "_owned_tokens", "_waiting_holders", "_without_blocks")

    def __init__(self, cache: BlisPool, host: HostMemory) -> None:
        super().__init__(cache)
        self._host_memory = host
        self._owned_tokens: dict[RequestId, int] = {}
        """Tokens for which a sequence has room that prefills, or waits and holds blocks."""
        self._waiting_holders: dict[RequestId, SequenceState] = {}
        """Waiting sequences that hold blocks."""
        self._has_lacked_blocks = False
        """Whether a sequence that ran alone has lacked blocks that waiting ones held, and none has left since."""
        self._without_blocks: set[RequestId] = set()
        """Running sequences that hold nothing yet."""

    @property
    def num_fetched_blocks(self) -> int:
        """Blocks that were fetched from main memory so far."""
        return self._host_memory.num_fetched

    @property
    def must_form_step(self) -> bool:
        return bool(self._without_blocks)

    def try_admit(self, seq: SequenceState, hit: PrefixHit, tokens: int) -> bool:
        request_id, start = seq.request.id, hit.num_blocks * self.block_size
        if not self._allocate(seq, start, start + tokens, self._pool.cached_copies(self._prompt_hashes(seq))):
            if self._owned_tokens.get(request_id):
                self._waiting_holders[request_id] = seq
            return False
        self._waiting_holders.pop(request_id, None)
        if not self._owned_tokens[request_id]:
            self._without_blocks.add(request_id)
        if not seq.num_preemptions:
            seq.num_cached_tokens = start
        self._set_computed(seq, start + tokens)
        return True

    def try_grow(self, seq: SequenceState, start: int, tokens: int) -> bool:
        grown = self._allocate(seq, start, start + tokens, ())
        self._set_computed(seq, start + tokens if grown else start)
        return grown

    def try_open_block(self, seq: SequenceState, tokens: int) -> bool:
        if not tokens:
            self._fetch_missing(seq, 0)
        opened = super().try_open_block(seq, tokens)
        if opened:
            self._without_blocks.discard(seq.request.id)
        return opened

    def try_open_all(self) -> bool:
        return False  # a sequence that was admitted without blocks fetches its prompt first

    def release_waiting(self) -> bool:
        waiting = list(self._waiting_holders.values())
        for seq in waiting:
            self._release_waiting_holder(seq)
        return bool(waiting)

    def try_relieve(self) -> bool:
        again, self._has_lacked_blocks = self._has_lacked_blocks, bool(self._waiting_holders)
        return again and self.release_waiting()

    def on_step_end(self, running: Iterable[tuple[SequenceState, int]]) -> None:
        for seq, tokens in running:
            self._host_memory.store(self._held_hashes(seq, tokens))

    def take_fetch_time(self) -> Micros:
        return self._host_memory.take_fetch_time()

    def forget(self, seq: SequenceState) -> None:
        self._has_lacked_blocks = False
        if seq.request.id in self._waiting_holders:
            self._release_waiting_holder(seq)
        super().forget(seq)

    def check(self, held: int) -> None:
        super().check(held + sum(self._owned_tokens[request_id] // self.block_size for request_id in self._waiting_holders))

    def _has_known_content(self, seq: SequenceState) -> bool:
        return super()._has_known_content(seq) and self._last_held_hash(seq) == self._prompt_hash_before(
            seq, len(self._held_copies(seq))
        )

    def _release(self, seq: SequenceState, tokens: int, opened: int) -> None:
        super()._release(seq, tokens, opened)
        del self._owned_tokens[seq.request.id]
        self._without_blocks.discard(seq.request.id)

    def _release_waiting_holder(self, seq: SequenceState) -> None:
        del self._waiting_holders[seq.request.id]
        self._release(seq, self._owned_tokens[seq.request.id], 0)

    def _allocate(self, seq: SequenceState, start: int, end: int, found: Sequence[int]) -> bool:
        """Take blocks for the tokens of the prompt from `start` to before `end`; return False if there is no room. `found` are
        the copies of the blocks before `start`, if `seq` is to be admitted."""
        begun = seq.request.id in self._owned_tokens
        moved = self._fetch_missing(seq, len(found))
        if not moved:
            return self._allocate_computed(seq, start, end, found)
        copies = self._pool.cached_copies(self._prompt_hashes(seq))
        reach = len(copies) * self.block_size
        # Nothing is gained: what was fetched has replaced a block before it, or is misplaced. The sequence takes the
        # positions that were found, whatever they hold by now.
        if reach <= start:
            return self._allocate_computed(seq, start, end, [moved.get(copy, copy) for copy in found])
        # Held at once, as in BLIS, even if there is no room for the rest.
        self._lock_found(seq, copies[self.blocks_for(start) if begun else 0 : self.blocks_for(end)])
        return reach >= end or self._allocate_computed(seq, reach, end, copies)

    def _fetch_missing(self, seq: SequenceState, found: int) -> dict[int, int]:
        """Fetch what the GPU lacks of the prompt, after the first `found` blocks and those that `seq` holds. Return the copies
        that were made, by the copies that they have replaced."""
        cache, size, moved = self._pool, self.block_size, dict[int, int]()
        room, own = cache.free, self._owned_tokens.get(seq.request.id, 0)
        first, before = found, self._prompt_hash_before(seq, found)
        if self.blocks_for(own) > found:
            first, before = self.blocks_for(own), 0 if own % size else self._last_held_hash(seq)
        for start in range(first * size, seq.request.prompt_tokens - size + 1, size):
            before = self._block_hash(seq, before, start)
            if cache.contains(before):
                continue
            if not room or before not in self._host_memory:
                break  # without this block, the later ones are of no use
            room -= 1
            self._host_memory.fetch(before)
            replaced, copy = cache.refill(before)
            moved[replaced] = copy
        return moved

    def _allocate_computed(self, seq: SequenceState, start: int, end: int, found: Sequence[int]) -> bool:
        """Take blocks for the tokens from `start` to before `end`, and fetch nothing; return False if there is no room."""
        own = self._owned_tokens.get(seq.request.id)
        needed = self.blocks_for(max(0, end - start - -(own or 0) % self.block_size))
        if needed + self._pool.num_unreferenced_copies(found) > self.free:
            return False
        if own is None:
            self._lock_found(seq, found if end > start else ())
        self._append_tokens(seq, start, end)
        return True

    def _lock_found(self, seq: SequenceState, copies: Sequence[int]) -> None:
        content = self._blocks_of(seq)
        lock = content.lock
        if not isinstance(lock, BlisLock):
            lock = content.lock = self._pool.lock(())
        self._pool.lock_copies(lock, copies)
        self.free = self._pool.free
        request_id = seq.request.id
        self._owned_tokens[request_id] = self._owned_tokens.get(request_id, 0) + len(copies) * self.block_size

    def _append_tokens(self, seq: SequenceState, start: int, end: int) -> None:
        """Put the tokens from `start` to before `end` behind what `seq` holds, block by block as in `_fill_blocks`."""
        size, own, content = self.block_size, self._owned_tokens[seq.request.id], self._blocks_of(seq)
        total = self._owned_tokens[seq.request.id] = own + end - start
        for held in range(self.blocks_for(own), self.blocks_for(total) + 1):
            if held > self.blocks_for(own):
                self.reserve(1)
            lock = self._assigned_lock(content, held)
            assert isinstance(lock, BlisLock)
            full = lock.num_committed * size
            if lock.num_private and total >= full + size:
                self._pool.commit_blocks(lock, (self._block_hash(seq, self._last_held_hash(seq), full + start - own),))
                self.free = self._pool.free

    def _set_computed(self, seq: SequenceState, computed: int) -> None:
        """Note that `computed` tokens of `seq` will be computed when the step has ended."""
        self._unowned[seq.request.id] = computed - self._owned_tokens[seq.request.id]

    def _block_hash(self, seq: SequenceState, before: int, start: int) -> int:
        """Return the hash of a block with the tokens of the prompt from `start` on, behind a block `before` (0 if there is
        none)."""
        index, rest = divmod(start, self.block_size)
        if rest:
            return hash((_MISPLACED_SALT, before, seq.arrival_index, start))
        own = self._prompt_hashes(seq)[index]
        return own if before == self._prompt_hash_before(seq, index) else hash((_MISPLACED_SALT, before, own))

    def _prompt_hash_before(self, seq: SequenceState, index: int) -> int:
        """Return the hash of the block of the prompt before the one at `index`; 0 if there is none."""
        return self._blocks_of(seq).block_hashes[index - 1] if index else 0

    def _last_held_hash(self, seq: SequenceState) -> int:
        """Return the hash of the last of its committed blocks; 0 if there is none."""
        copies = self._held_copies(seq)
        return self._pool.copy_hashes(copies[-1:])[0] if copies else 0

    def _held_copies(self, seq: SequenceState) -> Sequence[int]:
        lock = self._blocks_of(seq).lock
        return lock.copies if isinstance(lock, BlisLock) else ()

    def _held_hashes(self, seq: SequenceState, tokens: int) -> list[int]:
        """Return the hashes of the full blocks of `seq`, which owns `tokens` tokens."""
        hashes, full = self._pool.copy_hashes(self._held_copies(seq)), tokens // self.block_size
        if len(hashes) == full:
            return hashes
        if self._has_known_content(seq):
            return [*hashes, *self._all_block_hashes(seq, full)[len(hashes) : full]]
        return hashes + [
            hash((_MISPLACED_SALT, self._last_held_hash(seq), seq.arrival_index, index)) for index in range(len(hashes), full)
        ]
