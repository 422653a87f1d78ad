"""RadixHostTier: SGLang's HiCache, the memory of the host under the radix cache of the GPU.

A run of the tree is copied to the host by one of three policies:

    write_through             when it is computed
    write_through_selective   when a second request has used it
    write_back                when the GPU evicts it; the engine waits for the copy

What is in both places cannot go from the host, so with the first two the host holds more than the GPU only as far as it is
larger. What the GPU has evicted goes from the host in the order of that eviction: least recently used, and the end of a prefix
before its beginning. A prompt finds its leading blocks on the GPU and those that follow in the host. These are loaded layer by
layer while the step computes, so the step takes as long as the longer of the two:

    step = writes · time per block + max(computing, loads · time per block)

Copies of the other two policies cost nothing: they go over the link beside the steps. Fewer than 10 tokens are not worth a
load. Not modelled: a third tier (storage); answers that no request will ask for, which take room in SGLang's host as well; that
`lpm` orders by the hits of both tiers (here by those of the GPU). A write-back is counted in the next step of prefill, which
mostly evicts it.

Example: the GPU has 12 blocks, and two prompts of 10 are computed in turn, so the second evicts the first. Under write_through
the host has 10 blocks from the first step on, under write_back after the second prompt. Under write_through_selective the first
prompt is lost.

Source: SGLang's `HiRadixCache` (`write_through_threshold`, `load_back_threshold`, `evict`) and its page "HiCache design".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from maitred.core.units import Micros
from maitred.kv.host_tier import HostTier
from maitred.kv.radix_cache import RadixCache

HITS_TO_WRITE: Final = {"write_through": 1, "write_through_selective": 2, "write_back": None}
"""Write policies, with the uses after which a run of the tree is copied. None: when it is evicted."""
_LEAST_TOKENS: Final = 10


class RadixHostTier(HostTier):
    """The blocks in the memory of one host, under a radix cache."""

    def __init__(self, cache: RadixCache, capacity: int, time_per_block: float, write_policy: str) -> None:
        """`write_policy` is one of `HITS_TO_WRITE`; for the others see the base."""
        super().__init__(cache, capacity, time_per_block)
        hits = HITS_TO_WRITE[write_policy]
        self.writes_back = hits is None
        self._least_blocks = ceil(_LEAST_TOKENS / cache.block_size)
        self._on_gpu: set[int] = set()
        """Blocks that the GPU has as well. The others are in the order in which they go."""
        self._unaccounted_writes = 0
        """Blocks for whose copy a step is still to wait."""
        if hits is not None:
            cache.copy_used(hits, self._write)

    def on_stored(self, block_hash: int) -> None:
        if block_hash in self._blocks:  # it was loaded, or computed again
            del self._blocks[block_hash]
            self._on_gpu.add(block_hash)

    def on_removed(self, block_hash: int) -> None:
        if block_hash in self._on_gpu:
            self._on_gpu.remove(block_hash)
        elif self.writes_back and self._make_room():
            self._unaccounted_writes += 1
        else:
            return
        self._blocks[block_hash] = None

    def count_leading(self, block_hashes: Sequence[int], first: int) -> int:
        count = super().count_leading(block_hashes, first)
        return count if count >= self._least_blocks else 0

    def take_write_time(self) -> Micros:
        """Return the µs for which the step that is planned waits until evicted blocks are copied."""
        time, self._unaccounted_writes = ceil(self._unaccounted_writes * self._time_per_block), 0
        return time

    def _write(self, block_hashes: Sequence[int]) -> None:
        """Copy these blocks, which the GPU has, as far as there is room."""
        if block_hashes[-1] in self._on_gpu:
            return
        for block_hash in block_hashes:
            if block_hash not in self._on_gpu:
                if not self._make_room():
                    return
                self._on_gpu.add(block_hash)

    def _make_room(self) -> bool:
        """Return whether there is room for a block, after the first one that may go has gone if need be."""
        if len(self._blocks) + len(self._on_gpu) < self._capacity:
            return True
        if self._blocks:
            self._blocks.popitem(last=False)
            return True
        return False
