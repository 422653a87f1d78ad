"""What the tests of both caches share: a small set of prompts, a listener, and a naive twin of each cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from maitred.kv import PrefixCache, apply_namespace

Path = tuple[int, ...]
"""A prompt: a path in a binary tree, one step for each block, so that prefixes are often shared. Steps are 0 and 1, or in the
other cache namespace 2 and 3."""

DEEPEST = 4
PATHS: st.SearchStrategy[Path] = st.one_of(
    st.lists(st.integers(0, 1), max_size=DEEPEST).map(tuple), st.lists(st.integers(2, 3), max_size=DEEPEST).map(tuple)
)
LONGEST = [
    tuple(2 * space + (number >> bit) % 2 for bit in range(DEEPEST)) for space in (0, 1) for number in range(1 << DEEPEST)
]


def block_hashes(path: Path) -> list[int]:
    """Return the hashes of the blocks of a prompt."""
    hashes = [int("1" + "".join(str(step % 2) for step in path[:length]), 2) for length in range(1, len(path) + 1)]
    return list(apply_namespace(hashes, "other" if path[:1] > (1,) else ""))


def touch(cache: PrefixCache[Any], hashes: Sequence[int]) -> int:
    """Make the cached prefix of `hashes` recent, and return its blocks."""
    lock = cache.lock(hashes)
    cache.release(lock)
    return lock.num_committed


class Listener:
    """Keeps the set of cached blocks from what it is told. To be told of what it knows already is a defect."""

    def __init__(self) -> None:
        self.cached: set[int] = set()
        self.log: list[str] = []

    def on_stored(self, block_hash: int) -> None:
        assert block_hash not in self.cached
        self.cached.add(block_hash)
        self.log.append(f"+{block_hash}")

    def on_removed(self, block_hash: int) -> None:
        self.cached.remove(block_hash)
        self.log.append(f"-{block_hash}")


class NaivePool:
    """Blocks as vLLM keeps them: each has a number, and everything is done at once and by search."""

    def __init__(self, total: int) -> None:
        self.free = list(range(total))
        self.content: dict[int, int] = {}
        """The hash of each committed block, in the order of commitment."""
        self.num_locks = [0] * total

    def copies(self, hashes: Sequence[int]) -> list[int]:
        """Return the blocks that answer for the cached prefix of `hashes`."""
        found: list[int] = []
        for wanted in hashes:
            block = next((block for block, content in self.content.items() if content == wanted), None)
            if block is None:
                break
            found.append(block)
        return found

    def lock(self, hashes: Sequence[int]) -> list[int]:
        blocks = self.copies(hashes)
        for block in blocks:
            self.num_locks[block] += 1
            if block in self.free:
                self.free.remove(block)
        return blocks

    def grow(self, blocks: list[int], count: int) -> None:
        for _ in range(count):
            block = self.free.pop(0)
            self.content.pop(block, None)
            self.num_locks[block] = 1
            blocks.append(block)

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.num_locks[block] -= 1
            if not self.num_locks[block]:
                blank = block not in self.content
                self.free.insert(0 if blank else len(self.free), block)

    def touch(self, hashes: list[int]) -> None:
        for block in reversed(self.copies(hashes)):
            if block in self.free:
                self.free.remove(block)
                self.free.append(block)

    def evict(self, count: int) -> int:
        evicted = [block for block in self.free if block in self.content][:count]
        for block in evicted:
            del self.content[block]
            self.free.remove(block)
        self.free[:0] = evicted
        return len(evicted)


class NaiveNode(msgspec.Struct, eq=False):
    """A node of the naive tree: the steps of `path` from `start` on."""

    path: Path
    start: int
    used: int
    created: int
    hits: int = 0
    priority: int = 0
    locks: int = 0


class NaiveLock(msgspec.Struct, eq=False):
    """A lock on the prefix `path` of the naive tree."""

    path: Path
    num_private: int = 0
    counted: int = 0
    priority: int = 0


RANKS: dict[str, Callable[[NaiveNode], tuple[int, ...]]] = {
    "lru": lambda node: (node.used,),
    "mru": lambda node: (-node.used,),
    "lfu": lambda node: (node.hits, node.used),
    "fifo": lambda node: (node.created,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, node.used),
    "slru": lambda node: (int(node.hits >= 2), node.used),
}


class NaiveTree:
    """The radix tree as a list of nodes: everything is done at once and by search."""

    def __init__(self, total: int, policy: str) -> None:
        self.total, self.rank = total, RANKS[policy]
        self.nodes: list[NaiveNode] = []
        self.num_private = 0
        self.now = 0

    @property
    def size(self) -> int:
        return sum(len(node.path) - node.start for node in self.nodes)

    @property
    def referenced(self) -> int:
        return sum(len(node.path) - node.start for node in self.nodes if node.locks)

    @property
    def free(self) -> int:
        return self.total - self.referenced - self.num_private

    def cached_hashes(self) -> set[int]:
        return {each for node in self.nodes for each in block_hashes(node.path)}

    def num_cached(self, path: Path) -> int:
        return max(
            (n for node in self.nodes for n in range(len(path) + 1) if node.path[:n] == path[:n] and n <= len(node.path)),
            default=0,
        )

    def nodes_on(self, path: Path) -> list[NaiveNode]:
        """Return the nodes that end on `path`."""
        return [node for node in self.nodes if path[: len(node.path)] == node.path]

    def num_unreferenced(self, path: Path) -> int:
        matched = path[: self.num_cached(path)]
        spans = [(node.path, n) for node in self.nodes if node.locks for n in range(node.start, len(node.path))]
        return len(matched) - len({n for held, n in spans if held[: n + 1] == matched[: n + 1]})

    def touch(self, path: Path) -> None:
        self.now += 1
        path = path[: self.num_cached(path)]
        for node in list(self.nodes):
            if node.start < len(path) and node.path[: min(len(path), len(node.path))] == path[: len(node.path)]:
                node.used = self.now
                if len(node.path) > len(path):
                    self.now += 1
                    self.nodes.append(msgspec.structs.replace(node, path=path, used=self.now, created=self.now))
                    node.start = len(path)

    def lock(self, path: Path, priority: int) -> NaiveLock:
        self.touch(path)
        path = path[: self.num_cached(path)]
        for node in self.nodes_on(path):
            node.locks += 1
        return NaiveLock(path, priority=priority)

    def grow(self, lock: NaiveLock, blocks: int) -> None:
        lock.num_private += blocks
        self.num_private += blocks
        self.evict(self.size + self.num_private - self.total)

    def commit(self, lock: NaiveLock, steps: Sequence[int]) -> None:
        before, path = lock.path, lock.path + tuple(steps)
        self.touch(path)
        for node in self.nodes_on(path):
            node.hits += len(node.path) > lock.counted
            node.priority = max(node.priority, lock.priority)
        present = self.num_cached(path)
        if present < len(path):
            self.now += 1
            self.nodes.append(NaiveNode(path, present, self.now, self.now, 1, lock.priority))
        for node in self.nodes_on(path):
            node.locks += len(node.path) > len(before)
        lock.path, lock.counted = path, len(path)
        lock.num_private -= len(steps)
        self.num_private -= len(steps)

    def release(self, lock: NaiveLock) -> None:
        for node in self.nodes_on(lock.path):
            node.locks -= 1
        self.num_private -= lock.num_private

    def evict(self, blocks: int) -> int:
        freed = 0
        while freed < blocks:
            starts = {node.path[: node.start] for node in self.nodes}
            leaves = [node for node in self.nodes if not node.locks and node.path not in starts]
            if not leaves:
                break
            evicted = min(leaves, key=self.rank)
            self.nodes.remove(evicted)
            freed += len(evicted.path) - evicted.start
        return freed
