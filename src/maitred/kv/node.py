"""Node: a run of blocks in the radix tree, evicted as one."""

from __future__ import annotations


class Node:
    """`keys` are its blocks', and `end` is how many blocks the prefix has that ends in the last of them. Instants are those of
    the cache's own clock, which ticks with every use."""

    __slots__ = ("children", "created", "end", "entry", "hits", "keys", "locks", "parent", "priority", "used")

    def __init__(self, parent: Node | None, keys: list[int], end: int, now: int) -> None:
        self.parent = parent
        """None: the root, which has no keys and is never evicted."""
        self.keys = keys
        self.end = end
        self.children: dict[int, Node] = {}
        """By the first key of each, in the order in which they came; one that is split keeps its place."""
        self.locks = 0
        self.created = self.used = now
        self.hits = 0
        """How many owners published it; each counts once, in however many pieces."""
        self.priority = 0.0
        self.entry = 0
        """Names its valid entry in the eviction heap; 0: it has none."""
