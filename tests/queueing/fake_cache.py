"""A prefix cache of a few lines, which does as it is told and counts who looks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from maitred.core.contracts import PrefixCacheListener
from maitred.core.request import Request
from maitred.core.sequence import SequenceState


class Said:
    """`PrefixKeys` of a prompt that is written as one letter per block: equal beginnings have equal keys."""

    def __init__(self, letters: str) -> None:
        self.letters = letters

    def block_keys(self, block_size: int) -> Sequence[int]:
        return [key(prefix) for prefix in accumulate(self.letters)]


def key(prefix: str) -> int:
    """Of the block that ends `prefix`."""
    return int.from_bytes(prefix.encode())


class FakeCache:
    """What is cached is what was said, in any order and with any gaps."""

    def __init__(self, block_size: int = 16) -> None:
        self._block_size = block_size
        self.blocks: set[int] = set()
        self.looks = 0
        """How often somebody asked for a block."""
        self.chains = 0
        """How often somebody asked for a chain."""
        self._watchers: list[PrefixCacheListener] = []

    @property
    def block_size(self) -> int:
        return self._block_size

    def block_hashes(self, request: Request) -> Sequence[int]:
        self.chains += 1
        return () if request.prefix is None else request.prefix.block_keys(self._block_size)

    def contains(self, key: int) -> bool:
        self.looks += 1
        return key in self.blocks

    def num_cached_blocks(self, chain: Sequence[int]) -> int:
        self.looks += len(chain)
        return depth(self, chain)

    def num_cached_tokens(self, request: Request) -> int:
        return depth(self, self.block_hashes(request)) * self._block_size

    def subscribe(self, watcher: PrefixCacheListener) -> None:
        self._watchers.append(watcher)

    def publish(self, *prefixes: str) -> None:
        """Each of them, its own beginning included."""
        for prefix in prefixes:
            for block in Said(prefix).block_keys(self._block_size):
                self.publish_block(block)

    def publish_block(self, block: int) -> None:
        if block not in self.blocks:
            self.blocks.add(block)
            for watcher in self._watchers:
                watcher.on_stored(block)

    def evict(self, *prefixes: str) -> None:
        """The last block of each."""
        for prefix in prefixes:
            self.evict_block(key(prefix))

    def evict_block(self, block: int) -> None:
        if block in self.blocks:
            self.blocks.remove(block)
            for watcher in self._watchers:
                watcher.on_removed(block)


def depth(cache: FakeCache, chain: Sequence[int]) -> int:
    """How many of its blocks are cached without a gap, looked at one by one."""
    return next((i for i, block in enumerate(chain) if block not in cache.blocks), len(chain))


def seq(order: int, letters: str, *, extra: int = 4, arrival: int | None = None) -> SequenceState:
    """A prompt of one block per letter, and `extra` tokens."""
    request = Request(
        id=order,
        arrival=order if arrival is None else arrival,
        prompt_tokens=16 * len(letters) + extra,
        prefix=Said(letters),
    )
    return SequenceState(request, order, request.prompt_tokens)


class Idle:
    """A step of an instance where nothing runs."""

    step_index = 0
    running = 0
    free_blocks = 1_000

    def running_routing_keys(self) -> dict[str, int]:
        return {}
