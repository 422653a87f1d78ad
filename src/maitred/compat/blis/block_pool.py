"""BlisPool: KV memory as BLIS keeps it, where it differs from `BlockPool`.

* Of several copies of a prefix the last one answers; evicting any of them forgets it. So what is cached of a prompt need not be
  its beginning, and each block is looked for by itself.
* Blocks let go without content take their turn in eviction like any other.

A block whose content is known is a *copy*, named by a serial number; the others are only counted, so the free list holds copies
and extents of blank blocks:

    free list:  [12 blank] [copy 17] [copy 16] [copy 42] ...
                 next to go                 last let go
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from maitred.core.contracts import PrefixCacheListener
from maitred.core.errors import InvariantError
from maitred.kv.prefix_cache import CacheListeners, CacheLock, PrefixCache


class BlisLock(CacheLock):
    def __init__(self) -> None:
        super().__init__(0)
        self.copies: list[int] = []
        """The published blocks, first block first."""


class BlisPool(PrefixCache[BlisLock]):
    """The KV blocks of one instance. See `PrefixCache`."""

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("a pool has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._free = total
        self._pending_evictions = 0
        """Blocks taken that the free list has not given up yet."""
        self._num_unassigned = 0
        self._free_list: OrderedDict[int, int] = OrderedDict({-1: total})
        """The free list: copies by their number, and extents by a negative one, with how many blocks each has."""
        self._last_copy = 1
        self._hash_by_copy: dict[int, int] = {}
        """copy -> key"""
        self._copy_by_hash: dict[int, int] = {}
        """key -> the copy that answers for it"""
        self._users: dict[int, int] = {}
        """copy -> how many locks hold it; those in the free list are left out"""
        self._locks: set[BlisLock] = set()
        self._listeners = CacheListeners()

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def total(self) -> int:
        return self._total

    @property
    def free(self) -> int:
        return self._free

    @property
    def evictable(self) -> int:
        self.apply_evictions()
        return len(self._hash_by_copy) - len(self._users)

    @property
    def free_uncached(self) -> int:
        """Those at the head of the free list that say nothing."""
        self.apply_evictions()
        blocks = 0
        for entry, size in self._free_list.items():
            if entry > 0:
                break
            blocks += size
        return blocks

    @property
    def referenced(self) -> int:
        return len(self._users)

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self._listeners.add(listener)

    def contains(self, block_hash: int) -> bool:
        self.apply_evictions()
        return block_hash in self._copy_by_hash

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.apply_evictions()
        cached = self._copy_by_hash
        for position, key in enumerate(block_hashes):
            if key not in cached:
                return position
        return len(block_hashes)

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        return self.num_unreferenced_copies(self.cached_copies(block_hashes))

    def num_unreferenced_copies(self, copies: Sequence[int]) -> int:
        """How many of `copies` nobody holds."""
        users = self._users
        return sum([copy not in users for copy in copies])

    def cached_copies(self, chain: Sequence[int]) -> list[int]:
        """The copies that answer for the cached prefix of `chain`."""
        cached = self._copy_by_hash
        return [cached[key] for key in chain[: self.num_cached_blocks(chain)]]

    def copy_hashes(self, copies: Sequence[int]) -> list[int]:
        """The keys of what `copies` say."""
        return [self._hash_by_copy[copy] for copy in copies]

    def touch(self, block_hashes: Sequence[int]) -> int:
        copies = self.cached_copies(block_hashes)
        for copy in reversed(copies):
            if copy not in self._users:
                self._free_list.move_to_end(copy)
        return len(copies)

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> BlisLock:
        lock = BlisLock()
        self._locks.add(lock)
        self.lock_copies(lock, self.cached_copies(block_hashes))
        return lock

    def lock_copies(self, lock: BlisLock, copies: Sequence[int]) -> None:
        """`lock`, whose blocks are all published, holds `copies`, too."""
        users, idle = self._users, self._free_list
        for copy in copies:
            if copy in users:
                users[copy] += 1
            else:
                users[copy] = 1
                del idle[copy]
                self._free -= 1
        lock.copies.extend(copies)
        lock.num_committed += len(copies)

    def refill(self, key: int) -> tuple[int, int]:
        """The free block that is next to go says `key` from now on, and is the last to go. Returns which copy it was (0: none)
        and which it is. Raises KeyError if none is free."""
        self.apply_evictions()
        entry, blocks = self._free_list.popitem(last=False)
        if entry > 0:
            self._forget_copy(entry)
        elif blocks > 1:
            self._prepend_extent(blocks - 1)
        self._last_copy += 1
        self._hash_by_copy[self._last_copy] = key
        self._copy_by_hash[key] = self._last_copy
        self._free_list[self._last_copy] = 1
        self._listeners.notify_stored((key,))
        return max(entry, 0), self._last_copy

    def reserve(self, blocks: int) -> None:
        if blocks > self._free:
            raise ValueError(f"{blocks} blocks are to be taken, {self._free} are free")
        self._free -= blocks
        self._pending_evictions += blocks
        self._num_unassigned += blocks

    def assign(self, lock: BlisLock, blocks: int) -> None:
        if blocks > self._num_unassigned:
            raise ValueError(f"{blocks} blocks are claimed, {self._num_unassigned} were taken")
        self._num_unassigned -= blocks
        lock.num_private += blocks

    def commit_blocks(self, lock: BlisLock, block_hashes: Sequence[int]) -> None:
        count = len(block_hashes)
        if count > lock.num_private:
            raise ValueError(f"{count} blocks have content, {lock.num_private} are held without")
        self.apply_evictions()  # what is evicted before is forgotten before: it may be a copy of the same
        copies = range(self._last_copy + 1, self._last_copy + 1 + count)
        self._last_copy += count
        self._hash_by_copy.update(zip(copies, block_hashes, strict=True))
        self._users.update(dict.fromkeys(copies, 1))
        lock.copies.extend(copies)
        lock.num_private -= count
        lock.num_committed += count
        fresh = [key for key in block_hashes if key not in self._copy_by_hash]
        self._copy_by_hash.update(zip(block_hashes, copies, strict=True))
        self._listeners.notify_stored(fresh)

    def release(self, lock: BlisLock) -> None:
        self._release(lock, 0)

    def release_private(self, lock: BlisLock, num_full: int, block_hashes: Callable[[], Sequence[int]]) -> None:
        """`keys` are not needed: what nobody asks for is only counted."""
        if num_full > lock.num_private:
            raise ValueError(f"{num_full} blocks are to be buried, {lock.num_private} are held without content")
        lock.num_private -= num_full
        self._release(lock, num_full)

    def _release(self, lock: BlisLock, buried: int) -> None:
        self.apply_evictions()  # what was taken before is not taken from what is let go now
        self._locks.remove(lock)
        users, idle = self._users, self._free_list
        before = len(users)
        if lock.num_private:
            self._append_extent(lock.num_private)
        if buried:
            self._append_extent(buried)
        for copy in reversed(lock.copies):
            others = users[copy] - 1
            if others:
                users[copy] = others
            else:
                del users[copy]
                idle[copy] = 1
        self._free += lock.num_private + buried + before - len(users)

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
        owed, idle = self._pending_evictions, self._free_list
        if not owed:
            return
        self._pending_evictions = 0
        while owed:
            entry, blocks = idle.popitem(last=False)
            if entry > 0:
                self._forget_copy(entry)
            elif blocks > owed:
                self._prepend_extent(blocks - owed)
                return
            owed -= blocks

    def check(self) -> None:
        self.apply_evictions()
        plain = sum(lock.num_private for lock in self._locks) + self._num_unassigned
        if sum(self._free_list.values()) != self._free or self._free + len(self._users) + plain != self._total:
            raise InvariantError(
                f"KV blocks: {self._free} free ({sum(self._free_list.values())} listed)"
                f" + {len(self._users)} shared + {plain} plain != {self._total}"
            )
        held = Counter(copy for lock in self._locks for copy in lock.copies)
        if held != self._users or any(len(lock.copies) != lock.num_committed for lock in self._locks):
            raise InvariantError("KV blocks: references are not what the locks hold")
        if {copy for copy in self._free_list if copy > 0} | self._users.keys() != self._hash_by_copy.keys():
            raise InvariantError("KV blocks: a copy is neither held nor free, or both")
        if any(self._hash_by_copy.get(copy) != key for key, copy in self._copy_by_hash.items()):
            raise InvariantError("KV blocks: the index is not what the copies say")

    def _forget_copy(self, copy: int) -> None:
        """`copy` has left the free list and loses its content, and its prefix is forgotten, whoever answers for it."""
        key = self._hash_by_copy.pop(copy)
        if self._copy_by_hash.pop(key, None) is not None:
            self._listeners.notify_removed((key,))

    def _append_extent(self, blocks: int) -> int:
        """So many blocks join the end of the free list whose content nobody knows. Returns the name of their extent."""
        self._last_copy += 1
        self._free_list[-self._last_copy] = blocks
        return -self._last_copy

    def _prepend_extent(self, blocks: int) -> None:
        """Likewise, and they are the next to go."""
        self._free_list.move_to_end(self._append_extent(blocks), last=False)
