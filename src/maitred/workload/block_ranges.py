"""Chains of block ids as ranges: the thousands of blocks of a long prompt in a handful of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maitred.workload.prefix import BlockIds

_IDS_OF_A_SESSION = 1 << 32


class BlockRanges(msgspec.Struct, frozen=True, gc=False):
    """Chained ids, each range from its first to its last, both included."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def head(self, count: int) -> BlockRanges:
        """The first `count` of them, or all."""
        kept: list[tuple[int, int]] = []
        for first, last in self.ranges:
            if count <= 0:
                break
            kept.append((first, min(last, first + count - 1)))
            count -= last - first + 1
        return BlockRanges(tuple(kept))

    def then(self, ranges: Sequence[tuple[int, int]]) -> BlockRanges:
        return BlockRanges((*self.ranges, *ranges))


class RangeIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt of one session, written out when a cache asks."""

    blocks: BlockRanges
    tokens: int
    block: int
    """Tokens that one id stands for."""
    session: int
    """A number; ids of different sessions have nothing to do with each other."""

    def keys(self, block_size: int) -> Sequence[int]:
        """As `BlockIds.keys`."""
        base = self.session * _IDS_OF_A_SESSION
        ids = [base + block for first, last in self.blocks.ranges for block in range(first, last + 1)]
        return BlockIds(ids, self.tokens, self.block).keys(block_size)
