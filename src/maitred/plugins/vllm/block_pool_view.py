"""BlockPoolView: vLLM's block pool as the prefix cache that policies look at.

vLLM names a cached block by the hash of the prefix that ends with it, and the number of its KV cache group. Policies name it by
the same hash, as an int. Looking is a lookup in vLLM's own map, so policies see what vLLM will find.

Policies that keep an index of the waiting requests must also hear of every change. The pool has one map of its cached blocks,
and every change of it is an `insert` or a `pop` there. The first subscriber puts an `ObservedBlockMap` in its place, which
passes everything on to it.

vLLM stores the blocks of a request while it admits it, before it takes it out of the queue. A policy is asked for the head when
nothing is stored yet, and charges what the cache does not have when the head leaves. Hence `num_cached_tokens` leaves out what
was stored since the head was shown.

Example: two requests have computed the same block at the same time, so vLLM has it twice under one hash. Of the two inserts
only the first is a change, and of the two pops only the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from maitred.core.contracts import PrefixCacheListener, PrefixCacheView
from maitred.core.request import Request
from maitred.plugins.vllm.engine_request import EngineBlockHashes

_GROUP_ID_BYTES: Final = 4
"""Bytes that vLLM appends to a block hash, for the number of the KV cache group."""


class EngineBlockMap(Protocol):
    """vLLM's map of cached blocks, by hash and group."""

    def get_one_block(self, key: Any) -> Any:
        """Return a block with this name, or None."""
        ...

    def contain(self, key: Any, block_id: int) -> bool:
        """Return whether this very block has this name."""
        ...

    def insert(self, key: Any, block: Any) -> None:
        """Let `block` have this name; others may have it, too."""
        ...

    def pop(self, key: Any, block_id: int) -> Any:
        """Remove this name from the block, and return the block, or None if it did not have it."""
        ...

    def __len__(self) -> int: ...


class EngineBlockPool(Protocol):
    """The part of vLLM's `BlockPool` that is looked at."""

    hash_block_size: int
    blocks: Sequence[Any]
    cached_block_hash_to_block: EngineBlockMap

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be taken now, cached or not."""
        ...


class ObservedBlockMap:
    """A map that tells of every name that comes, and every name that is gone."""

    def __init__(self, inner: EngineBlockMap, on_stored: Callable[[bytes], None], on_removed: Callable[[bytes], None]) -> None:
        self._inner = inner
        self._on_stored, self._on_removed = on_stored, on_removed
        self.get_one_block, self.contain = inner.get_one_block, inner.contain  # vLLM's hot path: no call in between

    def insert(self, key: bytes, block: Any) -> None:
        is_new = self._inner.get_one_block(key) is None
        self._inner.insert(key, block)
        if is_new:
            self._on_stored(key)

    def pop(self, key: bytes, block_id: int) -> Any:
        block = self._inner.pop(key, block_id)
        if block is not None and self._inner.get_one_block(key) is None:
            self._on_removed(key)
        return block

    def __len__(self) -> int:
        return len(self._inner)


class BlockPoolView(PrefixCacheView):
    """The blocks of one KV cache group of vLLM: that of full attention, which alone can hold a whole prefix."""

    def __init__(self, pool: EngineBlockPool, group_id: int, block_size: int) -> None:
        """`block_size` is that of the group, in tokens."""
        self._pool = pool
        self._group = group_id.to_bytes(_GROUP_ID_BYTES)
        self._block_size = block_size
        self._hash_bytes = 0
        """Length of vLLM's hashes, which depends on its `prefix_caching_hash_algo`; 0 until one is seen."""
        self._listeners: list[PrefixCacheListener] = []
        self._stored_since_head: set[int] | None = None
        """Blocks stored since the head was shown; None when there is no such head."""
        self._observe_map()

    @property
    def block_size(self) -> int:
        return self._block_size

    def block_hashes(self, request: Request) -> Sequence[int]:
        if not isinstance(request.prefix, EngineBlockHashes):
            return ()
        hashes = request.prefix.engine_hashes(self._block_size)
        if hashes:
            self._hash_bytes = len(hashes[0])
        return [int.from_bytes(block_hash) for block_hash in hashes]

    def contains(self, block_hash: int) -> bool:
        key = block_hash.to_bytes(self._hash_bytes) + self._group
        return self._pool.cached_block_hash_to_block.get_one_block(key) is not None

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        return next((i for i, block_hash in enumerate(block_hashes) if not self.contains(block_hash)), len(block_hashes))

    def num_cached_tokens(self, request: Request) -> int:
        hashes, fresh = self.block_hashes(request), self._stored_since_head or ()
        return (
            next((i for i, key in enumerate(hashes) if key in fresh or not self.contains(key)), len(hashes)) * self._block_size
        )

    def apply_evictions(self) -> None:
        """Do nothing: vLLM evicts when it takes a block, and not later."""

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self._listeners.append(listener)

    def on_head_shown(self) -> None:
        """Note that vLLM looks at the head of the queue, and has stored nothing of it yet."""
        self._stored_since_head = set()

    def on_head_settled(self) -> None:
        """Note that vLLM admits no head any more in this step."""
        self._stored_since_head = None

    def on_reset(self, were_cached: Sequence[bytes]) -> None:
        """Note that vLLM has emptied its prefix cache, which held blocks with these names."""
        self._observe_map()  # vLLM has made a new map
        for key in were_cached:
            self._on_removed(key)

    def cached_keys(self) -> list[bytes]:
        """Return the names of all cached blocks."""
        return [block.block_hash for block in self._pool.blocks if block.block_hash is not None]

    def _observe_map(self) -> None:
        pool = self._pool
        pool.cached_block_hash_to_block = ObservedBlockMap(pool.cached_block_hash_to_block, self._on_stored, self._on_removed)

    def _on_stored(self, key: bytes) -> None:
        if key.endswith(self._group):
            block_hash = int.from_bytes(key[:-_GROUP_ID_BYTES])
            if self._stored_since_head is not None:
                self._stored_since_head.add(block_hash)
            for listener in self._listeners:
                listener.on_stored(block_hash)

    def _on_removed(self, key: bytes) -> None:
        if key.endswith(self._group):
            block_hash = int.from_bytes(key[:-_GROUP_ID_BYTES])
            for listener in self._listeners:
                listener.on_removed(block_hash)
