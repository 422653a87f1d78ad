"""HostMemory: BLIS's second tier of KV memory. What running sequences hold on the GPU is also in main memory.

    after a step:       every full block of every running sequence is copied there, in the order of admission; the least
                        recently copied or fetched ones make room
    before allocation:  blocks of the prompt that the GPU does not have any more are fetched from there

Copies cost nothing. Each block that is fetched prolongs the step for which it is fetched by a fixed time.

To copy the same blocks after each of a thousand steps is the same as to copy them once, after the last: what is kept, and in
which order, depends only on when each block was copied last. So an instance that skips steps copies once per run.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from maitred.core.units import Micros


class HostMemory:
    """The main memory of one instance. Blocks are known by their hashes."""

    __slots__ = ("_blocks", "_capacity", "_fetch_time", "_num_fetched", "_num_unaccounted")

    def __init__(self, blocks: int, fetch_time: Micros) -> None:
        """`blocks`: how many fit. `fetch_time`: µs to fetch one, at least 1."""
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
