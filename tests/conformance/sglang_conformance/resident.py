"""The pools of a recorded case: a radix cache that requests hold parts of, or memory without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maitred.core.contracts import PrefixCacheListener
from maitred.kv.radix_cache import RadixCache, RadixLock

from .tokens import Keys, Namespace


class Prompt(msgspec.Struct):
    """The content of a request: its tokens, and a key for each full page."""

    tokens: tuple[int, ...]
    pages: list[int]


class PageOrder(PrefixCacheListener):
    """The cached pages, with the order in which they came (see `orders.PageCache`)."""

    def __init__(self, cache: RadixCache) -> None:
        self.page_size = cache.block_size
        self._positions: dict[int, int] = {}
        self._count = 0
        cache.subscribe(self)

    def contains(self, block_hash: int) -> bool:
        return block_hash in self._positions

    def position(self, key: int) -> int:
        return self._positions[key]

    def on_stored(self, block_hash: int) -> None:
        self._count += 1
        self._positions[block_hash] = self._count

    def on_removed(self, block_hash: int) -> None:
        del self._positions[block_hash]


class ResidentMemory:
    """The pools. Counts are tokens, unless they say pages."""

    def __init__(self, page_size: int, pool_size: int, *, has_cache: bool = True) -> None:
        self.page_size = page_size
        self.cache = RadixCache(page_size, pool_size // page_size)
        self.pages = PageOrder(self.cache)
        self._has_cache = has_cache
        self._keys = Keys(page_size)

    @property
    def available(self) -> int:
        """Tokens that are free or evictable."""
        return self.cache.free * self.page_size

    @property
    def free(self) -> int:
        return self.cache.free_uncached * self.page_size

    @property
    def evictable(self) -> int:
        return self.cache.evictable * self.page_size

    def prompt(self, prompt: Sequence[int], output: Sequence[int]) -> Prompt:
        tokens = (*prompt, *output)
        return Prompt(tokens, self._keys.page_keys((None, None), tokens) if self._has_cache else [])

    def insert(self, space: Namespace, tokens: Sequence[int]) -> None:
        if self._has_cache:
            self.cache.insert(self._keys.page_keys(space, tokens))

    def touch(self, pages: Sequence[int]) -> int:
        """Make the cached prefix of `pages` recent, and return its pages."""
        if not self._has_cache:
            return 0
        lock = self.cache.lock(pages)
        self.cache.release(lock)
        return lock.num_committed

    def lock(self, pages: Sequence[int]) -> RadixLock:
        return self.cache.lock(pages)

    def release(self, lock: RadixLock) -> None:
        """Free what is held, and publish nothing."""
        self.cache.release(lock)

    def compute(self, prompt: Prompt, tokens: int) -> RadixLock:
        """Let a request have computed and published its first `tokens` tokens."""
        full = prompt.pages[: tokens // self.page_size]
        lock = self.cache.lock(full[: max(0, tokens - 1) // self.page_size])
        self._hold(lock, tokens)
        self.cache.commit_blocks(lock, full[lock.num_committed :])
        return lock

    def decode(self, lock: RadixLock, held: int, tokens: int) -> None:
        """Let a request that holds `held` tokens compute `tokens` tokens of its answer."""
        self._hold(lock, held + max(0, tokens))

    def evict_until_free(self, tokens: int) -> None:
        missing = -(-tokens // self.page_size) - self.cache.free_uncached
        if missing > 0:
            self.cache.evict(missing)

    def occupy(self, tokens: int) -> None:
        """Take `tokens` free tokens for good."""
        self._hold(self.cache.lock([]), tokens)

    def _hold(self, lock: RadixLock, tokens: int) -> None:
        pages = -(-tokens // self.page_size) - lock.num_committed - lock.num_private
        self.cache.reserve(pages)
        self.cache.assign(lock, pages)
