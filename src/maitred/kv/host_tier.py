"""HostTier: KV blocks that were evicted from the GPU, in the memory of its host (KV offloading).

    GPU cache --evicted--> host, the least recently used block goes first --found again--> blocks of the GPU

A prompt first finds its leading blocks on the GPU. The blocks that follow and are in the host are loaded into blocks of the
GPU, where they would have been computed otherwise. A load takes bytes / bandwidth, and the step for which the blocks are loaded
takes as much longer:

    time = blocks · tokens in a block · bytes per token / bandwidth

That is the kind of vLLM's offloading connector with its LRU, and of LMCache; SGLang's is in `radix_host_tier`. Copies to the
host cost nothing, as they go over the link beside the steps. A block that is loaded stays in the host, too. Not modelled: loads
that other requests do not wait for, a third tier on disks, blocks that hosts share.

Example: 1,000 blocks of 16 tokens of 131,072 bytes are 2.1 GB, which take 84 ms at 25 GB/s. To compute 16,000 tokens of an 8B
model takes an H100 some 400 ms.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import ceil

from maitred.core.contracts import PrefixCacheListener, PrefixCacheView
from maitred.core.units import Micros


class HostTier(PrefixCacheListener):
    """The blocks in the memory of one host, by their hashes."""

    def __init__(self, cache: PrefixCacheView, capacity: int, time_per_block: float) -> None:
        """`capacity` is in blocks; what `cache` evicts comes here. A block takes `time_per_block` µs to load."""
        self._capacity, self._time_per_block = capacity, time_per_block
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Block hashes, the least recently used first."""
        self.num_loaded = 0
        """Blocks that were loaded so far."""
        self._unaccounted = 0
        """Blocks that were loaded for the step that is planned."""
        cache.subscribe(self)

    def on_stored(self, block_hash: int) -> None:
        pass

    def on_removed(self, block_hash: int) -> None:
        self._blocks[block_hash] = None
        self._blocks.move_to_end(block_hash)
        if len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def count_leading(self, block_hashes: Sequence[int], first: int) -> int:
        """Return how many of these blocks, from the index `first` on, are here without a gap."""
        count = 0
        while first + count < len(block_hashes) and block_hashes[first + count] in self._blocks:
            count += 1
        return count

    def load(self, block_hashes: Sequence[int]) -> None:
        """Load these blocks, which are here. The last one becomes the first to go, as it is of no use without the others."""
        for block_hash in reversed(block_hashes):
            self._blocks.move_to_end(block_hash)
        self.num_loaded += len(block_hashes)
        self._unaccounted += len(block_hashes)

    def take_load_time(self) -> Micros:
        """Return the µs that the step which is planned takes longer for what was loaded for it."""
        time, self._unaccounted = ceil(self._unaccounted * self._time_per_block), 0
        return time
