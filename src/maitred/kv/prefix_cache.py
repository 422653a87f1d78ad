"""PrefixCache: KV memory that remembers what it held, as its owner (an instance) uses it.

Memory is counted in blocks. One who needs some takes a *lock*, which holds first the cached blocks of its prompt and then
blocks of its own:

    lock = cache.lock(chain[:usable])        # the cached prefix: shared, safe from eviction
    cache.take(blocks)                       # room for more: evicts what nobody holds
    cache.claim(lock, blocks)                # whose they are
    cache.publish(lock, chain[lock.published : computed])    # they are full now, and this is what they say
    cache.unlock(lock)                       # all of them are free; what was published stays cached until evicted

A fully cached prompt must leave at least one token to compute, or no token could come out. The caller sees to it: it locks at
most `(prompt_tokens - 1) // block_size` blocks. Before, `look` tells what locking would find and what it would cost, and
changes nothing.

**Taking is lazy.** `take` only counts. Whom it evicts is made real by the first look that could tell (`settle`), and whose the
blocks are is said by `claim`, any time until the owner lets go. So an instance that skips time takes what its decoding
sequences open during a thousand steps in one call (`BlockManager` knows how many, without asking each), claims a sequence's
blocks when the sequence ends, and publishes what they say, if anybody could ask for it, before somebody looks. Blocks that
nobody could ask for are never published: they stay plain, and cost nothing. The outcome is the same as step by step, if of
two blocks with the same content the one that filled first is published first (and see `RadixCache` on what is published
together).

All counts are blocks, unless they say tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from maitred.core.contracts import PrefixCacheListener
from maitred.core.request import Request
from maitred.kv.block_hashes import request_block_hashes
from maitred.kv.prefix_hit import PrefixProbe


class CacheLock:
    """What one owner holds: `published` blocks whose content is known, then `plain` ones."""

    num_private: int = 0

    def __init__(self, num_committed: int) -> None:
        self.num_committed = num_committed


L = TypeVar("L", bound=CacheLock)


class PrefixCache(Protocol[L]):
    """A `PrefixCacheView`, and more: see the module. A lock belongs to the cache that gave it; unlocked it is void
    (KeyError)."""

    @property
    def block_size(self) -> int: ...

    def contains(self, key: int) -> bool: ...

    def subscribe(self, watcher: PrefixCacheListener) -> None: ...

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int:
        """Blocks that nobody holds, whether or not something is cached in them."""
        ...

    @property
    def evictable(self) -> int:
        """Cached blocks that nobody holds."""
        ...

    @property
    def free_uncached(self) -> int:
        """Blocks that can be taken before anything cached is evicted, or some of them."""
        ...

    @property
    def referenced(self) -> int:
        """Cached blocks that somebody holds."""
        ...

    def block_hashes(self, request: Request) -> Sequence[int]:
        return request_block_hashes(request, self.block_size)

    def num_cached_tokens(self, request: Request) -> int:
        return self.num_cached_blocks(self.block_hashes(request)) * self.block_size

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        """How many leading blocks of `chain` are cached."""
        ...

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        """Of these, how many nobody holds: to lock `chain` takes so many of the free ones."""
        ...

    def probe(self, block_hashes: Sequence[int]) -> PrefixProbe:
        """Both at once."""
        cached = self.num_cached_blocks(block_hashes)
        return PrefixProbe(cached, self.num_unreferenced(block_hashes[:cached]) if cached else 0)

    def touch(self, block_hashes: Sequence[int]) -> int:
        """Its cached prefix is wanted now: as recent as if it had just been used. Returns `cached(chain)`."""
        ...

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> L:
        """Hold the cached prefix of `chain`. `priority` (larger: kept longer) goes with what is published under this lock, for
        caches that evict by it."""
        ...

    def reserve(self, blocks: int) -> None:
        """Blocks that will be claimed. Raises ValueError if fewer are free."""
        ...

    def assign(self, lock: L, blocks: int) -> None:
        """So many of those taken are `lock`'s: its last ones. Raises ValueError if fewer were taken and not claimed."""
        ...

    def commit_blocks(self, lock: L, block_hashes: Sequence[int]) -> None:
        """Its first plain blocks are full, and continue the chain of its published ones by `keys`. Raises ValueError if it
        holds fewer."""
        ...

    def release(self, lock: L) -> None:
        """Let go of all that `lock` holds."""
        ...

    def release_private(self, lock: L, num_full: int, block_hashes: Callable[[], Sequence[int]]) -> None:
        """Let go of all that `lock` holds; its first `blocks` plain ones are full of what nobody will ask for, and are evicted
        in their turn like any other content. `keys`: what they would be called, for a cache that must know. Raises ValueError
        if `lock` has fewer."""
        ...

    def evict(self, blocks: int) -> int:
        """Forget at least so many evictable blocks, or all there are. Returns how many."""
        ...

    def apply_evictions(self) -> None:
        """Make evictions real. Every look does it; who only listens to what watchers are told calls it first."""
        ...

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(total)."""
        ...

    def insert(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> int:
        """Cache `chain` as if somebody had computed it and let go, as far as there is room. Returns how many leading blocks
        were cached before."""
        lock = self.lock(block_hashes, priority=priority)
        before = lock.num_committed
        room = min(len(block_hashes) - before, self.free)
        self.reserve(room)
        self.assign(lock, room)
        self.commit_blocks(lock, block_hashes[before : before + room])
        self.release(lock)
        return before


class CacheListeners:
    """Who is told what a cache gains and loses. They must not change it from there."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[PrefixCacheListener] = []

    def add(self, watcher: PrefixCacheListener) -> None:
        self._listeners.append(watcher)

    def notify_stored(self, keys: Sequence[int]) -> None:
        for watcher in self._listeners:
            for key in keys:
                watcher.on_stored(key)

    def notify_removed(self, keys: Sequence[int]) -> None:
        """`keys` in the order in which a chain loses them: its end first."""
        for watcher in self._listeners:
            for key in keys:
                watcher.on_removed(key)
