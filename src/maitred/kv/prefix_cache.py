"""PrefixCache: KV memory that remembers what it held, as its owner (an instance) uses it.

Memory is counted in blocks. A sequence that needs some takes a *lock*, which holds first the cached blocks of its prompt and
then blocks of its own:

    lock = cache.lock(block_hashes[:usable])       # the cached prefix: shared, safe from eviction
    cache.reserve(blocks)                          # room for more, which may evict what no lock holds
    cache.assign(lock, blocks)                     # the lock that they belong to
    cache.commit_blocks(lock, block_hashes[lock.num_committed : computed])    # they are full now, and their content is known
    cache.release(lock)                            # all of them are free; committed blocks stay cached until evicted

A fully cached prompt must leave at least one token to compute, or no token could come out. The caller sees to it: it locks at
most `(prompt_tokens - 1) // block_size` blocks. `probe` tells beforehand what locking would find and cost, and changes nothing.

**Eviction is lazy.** `reserve` only counts. Which blocks it evicts is decided by the first call that could tell
(`apply_evictions`), and which lock the reserved blocks belong to is said by `assign`, at any time until the lock is released.
So an instance that skips time reserves what its decoding sequences open during a thousand steps in one call (`BlockManager`
knows how many, without asking each), assigns the blocks of a sequence when the sequence ends, and commits their content, if
any request could ask for it, before another call could tell. Content that no request could ask for is never committed: such
blocks stay private, and cost nothing. The outcome is the same as step by step, if of two blocks with the same content the one
that filled first is committed first (and see `RadixCache` on what is committed together).

Example, with 4 blocks of which 3 are cached and unlocked: `reserve(2)` leaves `free` at 2 and evicts nothing yet. A `probe`
then evicts one cached block, since one block was blank and two are reserved.

All counts are blocks, unless they say tokens. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from maitred.core.contracts import PrefixCacheListener
from maitred.core.request import Request
from maitred.kv.block_hashes import request_block_hashes


class PrefixHit:
    """The cached prefix of a prompt, as locking it would find it."""

    __slots__ = ("num_blocks", "num_in_host", "num_unreferenced")

    def __init__(self, num_blocks: int, num_unreferenced: int, num_in_host: int = 0) -> None:
        self.num_blocks = num_blocks
        """Leading blocks of the prompt that are cached."""
        self.num_unreferenced = num_unreferenced
        """Cached leading blocks that no lock holds. To lock them takes as many of the free ones."""
        self.num_in_host = num_in_host
        """Blocks that follow them and can be loaded from the memory of the host."""


NO_HIT: Final = PrefixHit(0, 0)


class CacheLock:
    """The blocks of one owner: first `num_committed` with known content, then `num_private` others."""

    num_private: int = 0

    def __init__(self, num_committed: int) -> None:
        self.num_committed = num_committed


L = TypeVar("L", bound=CacheLock)


class PrefixCache(ABC, Generic[L]):
    """A `PrefixCacheView` that can be changed: see the module. A lock belongs to the cache that gave it, and is void once it is
    released (KeyError).

    The ledger is common to all caches: how many blocks there are, are free, and are reserved and not yet assigned.
    """

    is_blockwise: bool = False
    """Whether content is kept and evicted block by block: as many blocks are evicted as are needed, and whether two blocks were
    committed in one call or in two makes no difference."""

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("a cache has at least one block of at least one token")
        self.total = total
        self.block_size = block_size
        self.free = total
        """Blocks that no lock holds and that are not reserved, whether or not something is cached in them."""
        self._pending_evictions = 0
        """Blocks that were reserved since evictions were last applied."""
        self.num_unassigned = 0
        """Blocks that are reserved and belong to no lock yet."""
        self._locks: set[L] = set()
        self._listeners: list[PrefixCacheListener] = []

    def subscribe(self, listener: PrefixCacheListener) -> None:
        """Tell `listener` of every change from now on. It must not change the cache from there."""
        self._listeners.append(listener)

    def block_hashes(self, request: Request) -> Sequence[int]:
        """Return the hashes of the full blocks of the prompt of `request`."""
        return request_block_hashes(request, self.block_size)

    def num_cached_tokens(self, request: Request) -> int:
        """Return how many tokens of the prompt of `request` are cached."""
        return self.num_cached_blocks(self.block_hashes(request)) * self.block_size

    def reserve(self, blocks: int) -> None:
        """Take `blocks` free blocks, which will be assigned. Raises ValueError if fewer are free."""
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks are to be reserved, {self.free} are free")
        self.free -= blocks
        self._pending_evictions += blocks
        self.num_unassigned += blocks

    def assign(self, lock: L, blocks: int) -> None:
        """Add `blocks` reserved blocks to `lock`, as its last ones. Raises ValueError if fewer are left to assign."""
        if blocks > self.num_unassigned:
            raise ValueError(f"{blocks} blocks are to be assigned, {self.num_unassigned} are reserved")
        self.num_unassigned -= blocks
        lock.num_private += blocks

    def insert(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> int:
        """Cache `block_hashes` as if a sequence had computed them and ended, as far as there is room. Return how many leading
        blocks were cached before."""
        lock = self.lock(block_hashes, priority=priority)
        before = lock.num_committed
        room = min(len(block_hashes) - before, self.free)
        self.reserve(room)
        self.assign(lock, room)
        self.commit_blocks(lock, block_hashes[before : before + room])
        self.release(lock)
        return before

    @property
    @abstractmethod
    def evictable(self) -> int:
        """Cached blocks that no lock holds."""

    @property
    @abstractmethod
    def free_uncached(self) -> int:
        """Blocks that can be reserved before anything cached is evicted, or some of them."""

    @property
    @abstractmethod
    def referenced(self) -> int:
        """Cached blocks that locks hold."""

    @abstractmethod
    def contains(self, block_hash: int) -> bool:
        """Return whether this block is cached."""

    @abstractmethod
    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        """Return how many leading blocks of `block_hashes` are cached."""

    @abstractmethod
    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        """Return how many blocks of the cached prefix of `block_hashes` no lock holds."""

    def probe(self, block_hashes: Sequence[int]) -> PrefixHit:
        """Return the cached prefix of `block_hashes` as locking it would find it."""
        cached = self.num_cached_blocks(block_hashes)
        return PrefixHit(cached, self.num_unreferenced(block_hashes[:cached])) if cached else NO_HIT

    @abstractmethod
    def num_held_by_alone(self, locks: Sequence[L]) -> int:
        """Return how many committed blocks none but `locks` hold: those that would be free if all of these were released."""

    @abstractmethod
    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> L:
        """Return a lock on the cached prefix of `block_hashes`. `priority` (larger: kept longer) goes with what is committed
        under this lock, for caches that evict by it."""

    @abstractmethod
    def commit_blocks(self, lock: L, block_hashes: Sequence[int]) -> None:
        """Commit the first private blocks of `lock`, which are full. Their content is `block_hashes`, and continues that of the
        committed blocks. Raises ValueError if `lock` has fewer private blocks."""

    @abstractmethod
    def release(self, lock: L) -> None:
        """Free all blocks of `lock`."""

    @abstractmethod
    def release_private(self, lock: L, num_full: int) -> None:
        """Free all blocks of `lock`. The first `num_full` private ones are full of content that no request will ask for, and
        are evicted in their turn like any other content; no listener is told of them. Raises ValueError if `lock` has fewer
        private blocks."""

    @abstractmethod
    def evict(self, blocks: int) -> int:
        """Forget at least `blocks` evictable blocks, or all there are. Return how many."""

    @abstractmethod
    def apply_evictions(self) -> None:
        """Evict as many blocks as have been reserved. All methods that look at the content call this first. The owner of a
        listener (`subscribe`) calls it before the listener is read."""

    @abstractmethod
    def check(self) -> None:
        """Raise InvariantError if the ledger does not balance. For tests; O(total)."""

    def _take_private(self, lock: L, blocks: int) -> None:
        """Take the first `blocks` private blocks from `lock`, which are full. Raises ValueError if it has fewer."""
        if blocks > lock.num_private:
            raise ValueError(f"{blocks} blocks are to be full, {lock.num_private} are private")
        lock.num_private -= blocks

    def _notify_stored(self, block_hashes: Sequence[int]) -> None:
        for listener in self._listeners:
            for block_hash in block_hashes:
                listener.on_stored(block_hash)

    def _notify_removed(self, block_hashes: Sequence[int]) -> None:
        """Tell the listeners of blocks that are gone, in the order in which a prefix loses them: its end first."""
        for listener in self._listeners:
            for block_hash in block_hashes:
                listener.on_removed(block_hash)
