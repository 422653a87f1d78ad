"""Node: a run of blocks in the radix tree, evicted as one."""

from __future__ import annotations


class RadixNode:
    """`keys` are its blocks', and `end` is how many blocks the prefix has that ends in the last of them. Instants are those of
    the cache's own clock, which ticks with every use."""

    __slots__ = (
        "block_hashes",
        "children",
        "created",
        "end_position",
        "heap_entry",
        "hits",
        "last_used",
        "num_locks",
        "parent",
        "priority",
    )

    def __init__(self, parent: RadixNode | None, block_hashes: list[int], end_position: int, now: int) -> None:
        self.parent = parent
        """None: the root, which has no keys and is never evicted."""
        self.block_hashes = block_hashes
        self.end_position = end_position
        self.children: dict[int, RadixNode] = {}
        """By the first key of each, in the order in which they came; one that is split keeps its place."""
        self.num_locks = 0
        self.created = self.last_used = now
        self.hits = 0
        """How many owners published it; each counts once, in however many pieces."""
        self.priority = 0.0
        self.heap_entry = 0
        """Names its valid entry in the eviction heap; 0: it has none."""
