"""HostMemory: the second tier of KV memory, as BLIS has it: what running sequences hold on the GPU is also in main memory.

    after a step:       every full block of every running sequence is copied there, in the order of admission; the least
                        recently copied or fetched ones make room
    before allocation:  blocks of the prompt that the GPU has no more are fetched from there

Copies cost nothing. Each block that is fetched prolongs the step for which it is fetched by a fixed time.

Who copies the same blocks after each of a thousand steps might as well copy them once, after the last: what is kept, and in
which order, depends only on when each block was copied last. So an instance that skips steps copies once per run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from maitred.core.units import Micros


class HostMemory:
    """The main memory of one instance. Blocks are known by their keys."""

    __slots__ = ("_blocks", "_capacity", "_fetch_time", "_num_fetched", "_num_unaccounted")

    def __init__(self, blocks: int, fetch_time: Micros) -> None:
        """`fetch_time`: of one block, at least 1 µs."""
        self._capacity = blocks
        self._fetch_time = fetch_time
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """The least recently used first."""
        self._num_fetched = 0
        self._num_unaccounted = 0
        """Blocks that no step has been charged for."""

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def __iter__(self) -> Iterator[int]:
        """The least recently used first."""
        return iter(self._blocks)

    @property
    def num_fetched(self) -> int:
        """Blocks fetched so far."""
        return self._num_fetched

    def store(self, keys: Iterable[int]) -> None:
        """These blocks are on the GPU, and here, too, the last ones as the most recently used."""
        blocks, room = self._blocks, self._capacity
        for key in keys:
            if key in blocks:
                blocks.move_to_end(key)
            else:
                blocks[key] = None
                if len(blocks) > room:
                    blocks.popitem(last=False)

    def fetch(self, key: int) -> None:
        """The block goes to the GPU, and stays. Raises KeyError if it is not here."""
        self._blocks.move_to_end(key)
        self._num_fetched += 1
        self._num_unaccounted += 1

    def take_fetch_time(self) -> Micros:
        """How much longer the next step takes for what has been fetched since the last one."""
        time, self._num_unaccounted = self._num_unaccounted * self._fetch_time, 0
        return time
