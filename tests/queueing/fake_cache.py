"""A prefix cache of a few lines, which holds what a test says and counts the lookups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from maitred.core.contracts import PrefixCacheListener
from maitred.core.request import Request
from maitred.core.sequence import SequenceState


class LetterPrompt:
    """The `PrefixKeys` of a prompt that is written as one letter per block: equal beginnings have equal hashes."""

    def __init__(self, letters: str) -> None:
        self.letters = letters

    def block_keys(self, block_size: int) -> Sequence[int]:
        return [block_hash(prefix) for prefix in accumulate(self.letters)]


def block_hash(prefix: str) -> int:
    """Return the hash of the block that ends `prefix`."""
    return int.from_bytes(prefix.encode())


class FakeCache:
    """A `PrefixCacheView` whose blocks come and go as a test says, in any order and with any gaps."""

    def __init__(self, block_size: int = 16) -> None:
        self._block_size = block_size
        self.blocks: set[int] = set()
        self.num_lookups = 0
        """How many blocks were looked up."""
        self.num_hash_requests = 0
        """How often the block hashes of a prompt were asked for."""
        self._listeners: list[PrefixCacheListener] = []

    @property
    def block_size(self) -> int:
        return self._block_size

    def block_hashes(self, request: Request) -> Sequence[int]:
        self.num_hash_requests += 1
        return () if request.prefix is None else request.prefix.block_keys(self._block_size)

    def contains(self, block_hash: int) -> bool:
        self.num_lookups += 1
        return block_hash in self.blocks

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.num_lookups += len(block_hashes)
        return cached_depth(self, block_hashes)

    def num_cached_tokens(self, request: Request) -> int:
        return cached_depth(self, self.block_hashes(request)) * self._block_size

    def apply_evictions(self) -> None:
        """Do nothing: a block goes as soon as the test says so."""

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self._listeners.append(listener)

    def store(self, *prefixes: str) -> None:
        """Store all blocks of each prefix."""
        for prefix in prefixes:
            for block in LetterPrompt(prefix).block_keys(self._block_size):
                self.store_block(block)

    def store_block(self, block: int) -> None:
        if block not in self.blocks:
            self.blocks.add(block)
            for listener in self._listeners:
                listener.on_stored(block)

    def evict(self, *prefixes: str) -> None:
        """Remove the last block of each prefix."""
        for prefix in prefixes:
            self.evict_block(block_hash(prefix))

    def evict_block(self, block: int) -> None:
        if block in self.blocks:
            self.blocks.remove(block)
            for listener in self._listeners:
                listener.on_removed(block)


def cached_depth(cache: FakeCache, block_hashes: Sequence[int]) -> int:
    """Return how many leading blocks are cached without a gap, looked at one by one."""
    return next((i for i, block in enumerate(block_hashes) if block not in cache.blocks), len(block_hashes))


def seq(number: int, letters: str, *, extra: int = 4, arrival: int | None = None) -> SequenceState:
    """Return a sequence with a prompt of one block per letter and `extra` tokens, which arrived at `arrival` or `number`."""
    request = Request(
        id=number,
        arrival=number if arrival is None else arrival,
        prompt_tokens=16 * len(letters) + extra,
        prefix=LetterPrompt(letters),
    )
    return SequenceState(request, number, request.prompt_tokens)


class IdleStep:
    """The step of an instance in which nothing runs."""

    step_index = 0
    running = 0
    free_blocks = 1_000

    def running_routing_keys(self) -> dict[str, int]:
        return {}
