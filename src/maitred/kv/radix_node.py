"""RadixNode and EvictableLeaves: a run of blocks in a radix tree, and the heap of those that may be evicted.

A node is *named* by the hashes of its blocks, or it is a *private* leaf: content that no request will ask for, and of which
only the number of blocks counts. A private leaf has a key of its own among the children of its parent, which is no hash.

    root ── [1 2] ─┬─ [3 4]             named, key 3
                   └─ 3 blocks          private, key -2⁶⁵ - 1

The leaves without locks stand in a heap, by the rank that the eviction policy gives them and then by their last use. A node
that is used, locked or gets a child leaves its entry behind, which is stale then (`core/lazy_heap.py`).

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maitred.core.lazy_heap import LazyHeap
from maitred.kv.eviction import EvictionPolicy, Rank
from maitred.kv.key_ranges import KeyRanges

FIRST_PRIVATE_KEY: Final = -(1 << 65)
"""Keys of private leaves are below this, where no hash is: hashes have 64 bits, with or without a sign."""


class RadixNode:
    """A run of blocks in the tree, evicted as one. Instants are those of the cache's own clock, which ticks with every use."""

    __slots__ = (
        "block_hashes",
        "children",
        "created",
        "end_position",
        "heap_entry",
        "hits",
        "key",
        "last_used",
        "num_locks",
        "parent",
        "path_hashes",
        "priority",
    )

    def __init__(self, parent: RadixNode | None, block_hashes: Sequence[int], end_position: int, now: int) -> None:
        self.parent = parent
        """The node above, or None for the root, which has no blocks and is never evicted."""
        self.block_hashes = block_hashes
        """Hashes of the blocks. Those of a private leaf are numbers that mean nothing."""
        self.key = block_hashes[0] if block_hashes else 0
        """The key among the children of the parent: the first hash, or for a private leaf a number that is no hash."""
        self.end_position = end_position
        """Blocks of the prefix that ends in the last block of this node."""
        self.children: dict[int, RadixNode] = {}
        """Children by the key of each, in the order in which they came. A child that is split keeps its place."""
        self.num_locks = 0
        self.path_hashes: KeyRanges | None = None
        """Hashes of all blocks from the root to the end of this node, where they are known as ranges."""
        self.created = self.last_used = now
        """Of `last_used`: a node was also used when one below it was, which it learns when that one is evicted."""
        self.hits = 0
        """Number of locks that have committed this node. A lock counts once, also if it commits in several pieces."""
        self.priority = 0.0
        """The largest priority of these locks."""
        self.heap_entry = 0
        """Serial number of its entry in `EvictableLeaves`, or 0 if it has none."""

    @property
    def is_private(self) -> bool:
        """Whether it is a leaf without hashes."""
        return self.key < FIRST_PRIVATE_KEY


class EvictableLeaves(LazyHeap[tuple[Rank, int, int, RadixNode]]):
    """The leaves without locks, the first to be evicted first. Entries: rank, last use, number of the entry, node."""

    __slots__ = ("_last_entry", "_rank")

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__()
        self._rank = policy.rank
        self._last_entry = 0

    def _is_live(self, entry: tuple[Rank, int, int, RadixNode]) -> bool:
        return entry[2] == entry[3].heap_entry

    def add(self, node: RadixNode) -> None:
        """Give `node` its present rank, if it can be evicted: it was used, is no longer locked, or has lost a child."""
        if node.children or node.num_locks or not node.parent:
            return
        self.remove(node)
        self._last_entry += 1
        node.heap_entry = self._last_entry
        self.push_entry((self._rank(node), node.last_used, node.heap_entry, node))

    def remove(self, node: RadixNode) -> None:
        """Remove `node`, which cannot be evicted for now, if it is here."""
        if node.heap_entry:
            node.heap_entry = 0
            self.mark_stale()

    def pop(self) -> RadixNode:
        """Remove and return the first to be evicted. Raises IndexError if there is none."""
        node = self.pop_entry()[3]
        node.heap_entry = 0
        return node

    def nodes(self) -> set[RadixNode]:
        """Return all leaves that can be evicted."""
        return {entry[3] for entry in self._heap if self._is_live(entry)}
