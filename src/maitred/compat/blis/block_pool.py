"""BlisPool: KV memory as BLIS keeps it, where it differs from `BlockPool`.

* Of several copies of a block the last one answers, and evicting any of them forgets the block. So what is cached of a prompt
  need not be its beginning, and each block is looked up by itself.
* Blank blocks, which are released without content, take their turn in eviction like any other.

A block with known content is a *copy*, named by a serial number; blank blocks are only counted. So the free list holds copies
and extents of blank blocks:

    free list:  [12 blank] [copy 17] [copy 16] [copy 42] ...
                 next to go                     released last

Example: copies 17 and 42 hold the same block, and 42, which was committed last, answers for it. When 17 is evicted, the block
is forgotten, and a prompt finds it no more, although 42 still holds it.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from maitred.core.errors import InvariantError
from maitred.kv.prefix_cache import CacheLock, PrefixCache


class BlisLock(CacheLock):
    """The lock of a `BlisPool`."""

    def __init__(self) -> None:
        super().__init__(0)
        self.copies: list[int] = []
        """The committed blocks, first block first."""


class BlisPool(PrefixCache[BlisLock]):
    """The KV blocks of one instance. See `PrefixCache` for the methods."""

    def __init__(self, total: int, block_size: int) -> None:
        super().__init__(total, block_size)
        self._free_list: OrderedDict[int, int] = OrderedDict({-1: total})
        """Copies by their number, and extents of blank blocks by a negative one, with how many blocks each has."""
        self._last_copy = 1
        """The number that was given last, to a copy or an extent."""
        self._hash_by_copy: dict[int, int] = {}
        self._copy_by_hash: dict[int, int] = {}
        """The copy that answers for a block."""
        self._num_locks: dict[int, int] = {}
        """How many locks hold a copy. Copies in the free list are left out."""

    @property
    def evictable(self) -> int:
        self.apply_evictions()
        return len(self._hash_by_copy) - len(self._num_locks)

    @property
    def free_uncached(self) -> int:
        """Blank blocks at the front of the free list."""
        self.apply_evictions()
        blocks = 0
        for entry, size in self._free_list.items():
            if entry > 0:
                break
            blocks += size
        return blocks

    @property
    def referenced(self) -> int:
        return len(self._num_locks)

    def contains(self, block_hash: int) -> bool:
        self.apply_evictions()
        return block_hash in self._copy_by_hash

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.apply_evictions()
        cached = self._copy_by_hash
        for position, block_hash in enumerate(block_hashes):
            if block_hash not in cached:
                return position
        return len(block_hashes)

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        return self.num_unreferenced_copies(self.cached_copies(block_hashes))

    def num_unreferenced_copies(self, copies: Sequence[int]) -> int:
        """Return how many of `copies` no lock holds."""
        locked = self._num_locks
        return sum([copy not in locked for copy in copies])

    def cached_copies(self, block_hashes: Sequence[int]) -> list[int]:
        """Return the copies that answer for the cached prefix of `block_hashes`."""
        cached = self._copy_by_hash
        return [cached[block_hash] for block_hash in block_hashes[: self.num_cached_blocks(block_hashes)]]

    def copy_hashes(self, copies: Sequence[int]) -> list[int]:
        """Return the block hashes of `copies`."""
        return [self._hash_by_copy[copy] for copy in copies]

    def num_held_by_alone(self, locks: Sequence[BlisLock]) -> int:
        counts = Counter([copy for lock in locks for copy in lock.copies])
        return sum([count == self._num_locks[copy] for copy, count in counts.items()])

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> BlisLock:
        lock = BlisLock()
        self._locks.add(lock)
        self.lock_copies(lock, self.cached_copies(block_hashes))
        return lock

    def lock_copies(self, lock: BlisLock, copies: Sequence[int]) -> None:
        """Add `copies` to `lock`, which has no private blocks."""
        locked, free_list = self._num_locks, self._free_list
        for copy in copies:
            if copy in locked:
                locked[copy] += 1
            else:
                locked[copy] = 1
                del free_list[copy]
                self.free -= 1
        lock.copies.extend(copies)
        lock.num_committed += len(copies)

    def refill(self, block_hash: int) -> tuple[int, int]:
        """Give the free block that is next to go the content `block_hash`, and make it the last to go. Return the copy that it
        was (0 if it was blank) and the copy that it is. Raises KeyError if no block is free."""
        self.apply_evictions()
        entry, blocks = self._free_list.popitem(last=False)
        if entry > 0:
            self._forget_copy(entry)
        elif blocks > 1:
            self._prepend_extent(blocks - 1)
        self._last_copy += 1
        self._hash_by_copy[self._last_copy] = block_hash
        self._copy_by_hash[block_hash] = self._last_copy
        self._free_list[self._last_copy] = 1
        self._notify_stored((block_hash,))
        return max(entry, 0), self._last_copy

    def commit_blocks(self, lock: BlisLock, block_hashes: Sequence[int]) -> None:
        count = len(block_hashes)
        self._take_private(lock, count)
        self.apply_evictions()  # a copy of the same block may have to go, which is forgotten first then
        copies = range(self._last_copy + 1, self._last_copy + 1 + count)
        self._last_copy += count
        self._hash_by_copy.update(zip(copies, block_hashes, strict=True))
        self._num_locks.update(dict.fromkeys(copies, 1))
        lock.copies.extend(copies)
        lock.num_committed += count
        fresh = [block_hash for block_hash in block_hashes if block_hash not in self._copy_by_hash]
        self._copy_by_hash.update(zip(block_hashes, copies, strict=True))
        self._notify_stored(fresh)

    def release(self, lock: BlisLock) -> None:
        self._release(lock, 0)

    def release_private(self, lock: BlisLock, num_full: int) -> None:
        """Free all blocks of `lock`; see the base. Content that no request asks for is only counted, without its hashes."""
        self._take_private(lock, num_full)
        self._release(lock, num_full)

    def _release(self, lock: BlisLock, num_full: int) -> None:
        self.apply_evictions()  # earlier reservations are not taken from the blocks that are released now
        self._locks.remove(lock)
        locked, free_list = self._num_locks, self._free_list
        before = len(locked)
        if lock.num_private:
            self._append_extent(lock.num_private)
        if num_full:
            self._append_extent(num_full)
        for copy in reversed(lock.copies):
            others = locked[copy] - 1
            if others:
                locked[copy] = others
            else:
                del locked[copy]
                free_list[copy] = 1
        self.free += lock.num_private + num_full + before - len(locked)

    def evict(self, blocks: int) -> int:
        self.apply_evictions()
        copies: list[int] = []
        for copy in self._free_list:
            if len(copies) >= blocks:
                break
            if copy > 0:
                copies.append(copy)
        for copy in copies:
            del self._free_list[copy]
            self._forget_copy(copy)
        if copies:
            self._prepend_extent(len(copies))
        return len(copies)

    def apply_evictions(self) -> None:
        pending, free_list = self._pending_evictions, self._free_list
        if not pending:
            return
        self._pending_evictions = 0
        while pending:
            entry, blocks = free_list.popitem(last=False)
            if entry > 0:
                self._forget_copy(entry)
            elif blocks > pending:
                self._prepend_extent(blocks - pending)
                return
            pending -= blocks

    def check(self) -> None:
        self.apply_evictions()
        private = sum(lock.num_private for lock in self._locks) + self.num_unassigned
        listed, locked = sum(self._free_list.values()), len(self._num_locks)
        if listed != self.free or self.free + locked + private != self.total:
            shares = f"{self.free} free ({listed} listed) + {locked} shared + {private} private"
            raise InvariantError(f"KV blocks: {shares} != {self.total}")
        held = Counter(copy for lock in self._locks for copy in lock.copies)
        if held != self._num_locks or any(len(lock.copies) != lock.num_committed for lock in self._locks):
            raise InvariantError("KV blocks: references are not what the locks hold")
        if {copy for copy in self._free_list if copy > 0} | self._num_locks.keys() != self._hash_by_copy.keys():
            raise InvariantError("KV blocks: a copy is neither held nor free, or both")
        if any(self._hash_by_copy.get(copy) != block_hash for block_hash, copy in self._copy_by_hash.items()):
            raise InvariantError("KV blocks: the index is not what the copies say")

    def _forget_copy(self, copy: int) -> None:
        """Drop the content of `copy`, which has left the free list. The block is forgotten even if another copy answers."""
        block_hash = self._hash_by_copy.pop(copy)
        if self._copy_by_hash.pop(block_hash, None) is not None:
            self._notify_removed((block_hash,))

    def _append_extent(self, blocks: int) -> int:
        """Put `blocks` blank blocks at the end of the free list. Return the number of their extent."""
        self._last_copy += 1
        self._free_list[-self._last_copy] = blocks
        return -self._last_copy

    def _prepend_extent(self, blocks: int) -> None:
        """Put `blocks` blank blocks at the front of the free list."""
        self._free_list.move_to_end(self._append_extent(blocks), last=False)
