"""Leaves: the leaves of the radix tree that may be evicted, the first to go first.

A heap whose entries may be out of date: a node names its valid one, and one that is used again gets another. What is out of
date is dropped when it comes up, or when it is more than half of the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from maitred.kv.eviction import EvictionPolicy, Rank
from maitred.kv.node import Node


class Leaves:
    __slots__ = ("_count", "_entries", "_heap", "_rank")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._rank = policy.rank
        self._heap: list[tuple[Rank, int, int, Node]] = []
        """Rank, last use, the name of the entry, and whose it is."""
        self._entries = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def offer(self, node: Node) -> None:
        """`node` was used, is no longer locked, or has lost a child: if it can be evicted, this is its rank now."""
        if node.children or node.locks or not node.parent:
            return
        self.withdraw(node)
        self._count += 1
        self._entries += 1
        node.entry = self._entries
        heappush(self._heap, (self._rank(node), node.used, node.entry, node))
        if len(self._heap) > 2 * self._count + 16:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].entry]
            heapify(self._heap)

    def withdraw(self, node: Node) -> None:
        """`node` cannot be evicted, at least for now."""
        if node.entry:
            node.entry = 0
            self._count -= 1

    def pop(self) -> Node:
        """Take the first to go. Raises IndexError when there is none."""
        while True:
            _, _, entry, node = heappop(self._heap)
            if entry == node.entry:
                self.withdraw(node)
                return node

    def nodes(self) -> set[Node]:
        return {node for _, _, entry, node in self._heap if entry == node.entry}
