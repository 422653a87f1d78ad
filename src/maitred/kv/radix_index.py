"""NodeIndex: in which node of a radix tree a block is.

Hashes in a list have an entry each. Those in `KeyRanges` have one for each range, in order, however many blocks it has:

    starts     70   80   400        the node with the blocks 70 to 75, then that with 80 to 131, then that with 400 to 410
    ends       76  132   411

A node is found by a look-up or by a bisection. No block is in two nodes, so no two ranges overlap.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from maitred.kv.key_ranges import KeyRanges
from maitred.kv.radix_node import RadixNode


class NodeIndex:
    """The nodes of the named blocks of one tree."""

    __slots__ = ("_by_hash", "_ends", "_nodes", "_starts")

    def __init__(self) -> None:
        self._by_hash: dict[int, RadixNode] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._nodes: list[RadixNode] = []

    def get(self, block_hash: int) -> RadixNode | None:
        """Return the node of a block, or None if it is in none."""
        at = bisect_right(self._starts, block_hash)
        if at and block_hash < self._ends[at - 1]:
            return self._nodes[at - 1]
        return self._by_hash.get(block_hash)

    def num_leading(self, block_hashes: Sequence[int]) -> int:
        """Return how many of `block_hashes` are in nodes, which are the first ones."""
        if not block_hashes or self.get(block_hashes[0]) is None:
            return 0
        if type(block_hashes) is not KeyRanges:
            return bisect_left(block_hashes, True, key=lambda block_hash: self.get(block_hash) is None)
        ranges = block_hashes.ranges()
        last = bisect_left(ranges, True, key=lambda each: self.get(each.stop - 1) is None)
        before = sum([len(each) for each in ranges[:last]])
        if last == len(ranges):
            return before
        return before + bisect_left(ranges[last], True, key=lambda block_hash: self.get(block_hash) is None)

    def add(self, block_hashes: Sequence[int], node: RadixNode) -> bool:
        """Add the blocks of `node`. Return False, and change nothing, if one of them is here already or occurs twice."""
        if type(block_hashes) is not KeyRanges:
            distinct = dict.fromkeys(block_hashes, node)
            if len(distinct) != len(block_hashes) or not self._by_hash.keys().isdisjoint(distinct):
                return False
            if self._starts and any(self.get(each) is not None for each in block_hashes):
                return False
            self._by_hash.update(distinct)
            return True
        if self._by_hash and not self._by_hash.keys().isdisjoint(block_hashes):
            return False
        added: list[range] = []
        for each in block_hashes.ranges():
            at = bisect_right(self._starts, each.start)
            if (at and each.start < self._ends[at - 1]) or (at < len(self._starts) and self._starts[at] < each.stop):
                self._remove_ranges(added)
                return False
            self._starts.insert(at, each.start)
            self._ends.insert(at, each.stop)
            self._nodes.insert(at, node)
            added.append(each)
        return True

    def remove(self, block_hashes: Sequence[int]) -> None:
        """Remove all blocks of a node."""
        if type(block_hashes) is KeyRanges:
            self._remove_ranges(block_hashes.ranges())
        else:
            for block_hash in block_hashes:
                del self._by_hash[block_hash]

    def move(self, block_hashes: Sequence[int], upper: RadixNode, lower: RadixNode) -> None:
        """Note that the node of `block_hashes` was cut into `upper` and `lower`, of which the latter is the same object."""
        if type(block_hashes) is KeyRanges:
            self._remove_ranges(block_hashes.ranges())
            self.add(upper.block_hashes, upper)
            self.add(lower.block_hashes, lower)
        else:
            self._by_hash.update(dict.fromkeys(upper.block_hashes, upper))

    def by_hash(self) -> dict[int, RadixNode]:
        """Return the node of each block, written out. For tests."""
        found = dict(self._by_hash)
        for start, end, node in zip(self._starts, self._ends, self._nodes, strict=True):
            found.update(dict.fromkeys(range(start, end), node))
        return found

    def _remove_ranges(self, ranges: Sequence[range]) -> None:
        for each in ranges:
            at = bisect_left(self._starts, each.start)
            del self._starts[at], self._ends[at], self._nodes[at]
