"""RadixCache: KV memory as SGLang remembers it, a tree of runs of pages (here: blocks), evicted leaf by leaf.

Each node is a run of blocks that were published together; where two prompts part, the run is split. A lock counts on every
node from the end of its prefix up to the root, and only leaves that nobody has locked are evicted, each as a whole. So a
cached prefix never has a hole, and how many leading blocks of a prompt are cached is found by bisection, without walking.

    evict(n):   leaves by the rank of the eviction policy, the smallest first, until n blocks are free (perhaps more);
                a parent that has lost its last child is a leaf like any other

Using a prefix (`lock`, `touch`, `publish`) makes its nodes recent, all the way up, and splits the last one where it ends; the
rest of that run was looked at, so it becomes recent too. Looking (`cached`, `idle`, `match`, `holds`) does neither.

What is published already is not kept twice: `publish` gives back the duplicates. What is published together is one node, so
publishing late is publishing otherwise: an instance publishes when a chunk of prefill ends and when a sequence does, and
never while it decodes, as SGLang does. Taking is lazy all the same.

Namespaces need no care: their keys differ (`kv.keys`). Without `total` the tree has as much memory as anybody asks for: the
scratch tree by which SGLang finds equal prompts within one batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from maitred.contracts import PrefixWatcher
from maitred.errors import ConfigError, InvariantError
from maitred.kv.cache import Lock, PrefixCache, Watchers
from maitred.kv.eviction import EvictionPolicy, LeastRecentlyUsed
from maitred.kv.leaves import Leaves
from maitred.kv.node import Node

UNBOUNDED = 1 << 62


class PathLock(Lock):
    counted: int = 0
    """So many leading blocks have been counted as a hit."""

    def __init__(self, published: int, node: Node, priority: float) -> None:
        super().__init__(published)
        self.node = node
        """Where the published blocks end."""
        self.priority = priority


class RadixCache(PrefixCache[PathLock]):
    """The KV memory of one instance, or without `total` a tree alone. See `PrefixCache`."""

    def __init__(self, block_size: int, total: int = UNBOUNDED, eviction: EvictionPolicy | None = None) -> None:
        """`eviction` None: lru. Raises ValueError unless `total` and `block_size` (in tokens) are at least 1."""
        if total < 1 or block_size < 1:
            raise ValueError("a cache has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._clock = 0
        self._root = Node(None, [], 0, 0)
        self._where: dict[int, Node] = {}
        """key -> the node that has it"""
        self._protected = 0
        self._plain = 0
        """Blocks taken whose content is not published."""
        self._unclaimed = 0
        self._leaves = Leaves(eviction or LeastRecentlyUsed())
        self._locks: set[PathLock] = set()
        self._watchers = Watchers()

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def total(self) -> int:
        return self._total

    @property
    def free(self) -> int:
        return self._total - self._protected - self._plain

    @property
    def evictable(self) -> int:
        self.settle()
        return len(self._where) - self._protected

    @property
    def spare(self) -> int:
        return self.free - self.evictable

    @property
    def protected(self) -> int:
        return self._protected

    @property
    def root(self) -> Node:
        """The tree, for policies that weigh it; not to be changed."""
        self.settle()
        return self._root

    def watch(self, watcher: PrefixWatcher) -> None:
        self._watchers.add(watcher)

    def holds(self, key: int) -> bool:
        self.settle()
        return key in self._where

    def cached(self, chain: Sequence[int]) -> int:
        self.settle()
        return self._present(chain)

    def idle(self, chain: Sequence[int]) -> int:
        count = self.cached(chain)
        node = self._where[chain[count - 1]] if count else self._root
        while node.parent and not node.locks:
            node = node.parent
        return max(0, count - node.end)

    def touch(self, chain: Sequence[int]) -> int:
        count = self.cached(chain)
        self._reach(chain, count, 0, self._root)
        return count

    def lock(self, chain: Sequence[int], *, priority: float = 0.0) -> PathLock:
        count = self.cached(chain)
        node = self._reach(chain, count, 0, self._root)
        self._hold(node, self._root)
        lock = PathLock(count, node, priority)
        self._locks.add(lock)
        return lock

    def take(self, blocks: int) -> None:
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks are to be taken, {self.free} are free")
        self._plain += blocks
        self._unclaimed += blocks

    def claim(self, lock: PathLock, blocks: int) -> None:
        if blocks > self._unclaimed:
            raise ValueError(f"{blocks} blocks are claimed, {self._unclaimed} were taken")
        self._unclaimed -= blocks
        lock.plain += blocks

    def publish(self, lock: PathLock, keys: Sequence[int]) -> None:
        """Raises ConfigError, too, for keys that do not stand for their whole prefix."""
        if len(keys) > lock.plain:
            raise ValueError(f"{len(keys)} blocks have content, {lock.plain} are held without")
        self.settle()
        present = self._present(keys)
        node = self._reach(keys, present, lock.published, lock.node)
        self._count(node, lock)
        if present < len(keys):
            node = self._grow(node, list(keys[present:]), lock.priority)
        self._plain -= len(keys)
        lock.plain -= len(keys)
        lock.published += len(keys)
        self._hold(node, lock.node)
        lock.node = node
        lock.counted = node.end

    def unlock(self, lock: PathLock) -> None:
        self.settle()
        self._locks.remove(lock)
        self._plain -= lock.plain
        node = lock.node
        while node.parent:
            node.locks -= 1
            if not node.locks:
                self._protected -= len(node.keys)
                self._leaves.offer(node)
            node = node.parent

    def bury(self, lock: PathLock, blocks: int, keys: Callable[[], Sequence[int]]) -> None:
        """In a tree everything has its place, and so a name."""
        if blocks:
            self.publish(lock, keys())
        self.unlock(lock)

    def evict(self, blocks: int) -> int:
        self.settle()
        return self._evict(blocks)

    def settle(self) -> None:
        excess = len(self._where) + self._plain - self._total
        if excess > 0:
            self._evict(excess)

    def check(self) -> None:
        self.settle()
        nodes = list(self._nodes())
        self._check_tree(nodes)
        held = Counter(node for lock in self._locks for node in _path(lock.node))
        if any(node.locks != held[node] for node in nodes) or any(lock.node.end != lock.published for lock in self._locks):
            raise InvariantError("radix tree: lock references are not what the locks hold")
        plain = sum(lock.plain for lock in self._locks) + self._unclaimed
        protected = sum(len(node.keys) for node in nodes if node.locks)
        if plain != self._plain or protected != self._protected or len(self._where) + plain > self._total:
            raise InvariantError(
                f"KV blocks: {plain} plain (said {self._plain}), {protected} protected (said {self._protected}),"
                f" {len(self._where)} cached, {self._total} in all"
            )

    def _check_tree(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            parent = node.parent
            if not (parent and node.keys and parent.children.get(node.keys[0]) is node):
                raise InvariantError("radix tree: a node is not where its parent says")
            if node.end != parent.end + len(node.keys):
                raise InvariantError("radix tree: a node does not end where its parent and its keys say")
        keys = [(key, node) for node in nodes for key in node.keys]
        if dict(keys) != self._where or len(keys) != len(self._where):
            raise InvariantError("radix tree: the index is not what the nodes say")
        leaves = {node for node in nodes if not (node.locks or node.children)}
        if self._leaves.nodes() != leaves or len(self._leaves) != len(leaves):
            raise InvariantError("radix tree: other leaves would be evicted than those that can be")

    def _nodes(self) -> Iterator[Node]:
        """All but the root."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _present(self, keys: Sequence[int]) -> int:
        """Cached prefixes have no holes: how many of `keys`, which continue a cached prefix, are cached."""
        where = self._where
        return bisect_left(keys, True, key=lambda key: key not in where)

    def _reach(self, keys: Sequence[int], count: int, start: int, base: Node) -> Node:
        """The node that ends with the first `count` of `keys`, which come after `start` blocks that end in `base`. Makes it if
        a split will do, and marks it and all above as used."""
        self._clock += 1
        node, end = self._where[keys[count - 1]] if count else base, start + count
        wanted = list(keys[:count])
        if end > node.end:
            raise _ambiguous(keys[count - 1])
        for used in _path(node):
            used.used = self._clock
            first = used.end - len(used.keys) - start
            if first >= 0 and used.keys[: end - start - first] != wanted[first : used.end - start]:
                raise _ambiguous(keys[count - 1])
        if node.entry:
            self._leaves.offer(node)
        return node if end == node.end else self._split(node, end - node.end)

    def _split(self, node: Node, offset: int) -> Node:
        """Cut `node` before its last `-offset` blocks; what comes before becomes a node of its own, which is returned."""
        assert node.parent
        self._clock += 1
        upper = Node(node.parent, node.keys[:offset], node.end + offset, self._clock)
        upper.locks, upper.hits, upper.priority = node.locks, node.hits, node.priority
        node.parent.children[upper.keys[0]] = upper
        node.parent = upper
        node.keys = node.keys[offset:]
        upper.children[node.keys[0]] = node
        self._where.update(dict.fromkeys(upper.keys, upper))
        return upper

    def _grow(self, node: Node, keys: list[int], priority: float) -> Node:
        """A leaf of `keys` below `node`."""
        distinct = dict.fromkeys(keys)
        if len(distinct) != len(keys) or not self._where.keys().isdisjoint(distinct):
            raise _ambiguous(next(key for key in reversed(keys) if key in self._where or keys.count(key) > 1))
        self._clock += 1
        leaf = Node(node, keys, node.end + len(keys), self._clock)
        leaf.hits, leaf.priority = 1, priority
        node.children[keys[0]] = leaf
        self._leaves.withdraw(node)
        self._where.update(dict.fromkeys(keys, leaf))
        self._watchers.published(keys)
        return leaf

    def _count(self, node: Node, lock: PathLock) -> None:
        """`lock` publishes the prefix that ends in `node`."""
        while node.parent:
            if node.end > lock.counted:
                node.hits += 1
            node.priority = max(node.priority, lock.priority)
            node = node.parent

    def _hold(self, node: Node, above: Node) -> None:
        """Lock `node` and its parents below `above`."""
        while node is not above:
            if not node.locks:
                self._protected += len(node.keys)
                self._leaves.withdraw(node)
            node.locks += 1
            assert node.parent
            node = node.parent

    def _evict(self, blocks: int) -> int:
        freed = 0
        while freed < blocks and self._leaves:
            node = self._leaves.pop()
            self._remove(node)
            freed += len(node.keys)
        return freed

    def _remove(self, leaf: Node) -> None:
        parent, keys = leaf.parent, leaf.keys
        assert parent
        del parent.children[keys[0]]
        for key in keys:
            del self._where[key]
        self._watchers.evicted(keys[::-1])
        self._leaves.offer(parent)


def _path(node: Node) -> Iterator[Node]:
    """`node` and its parents, without the root."""
    while node.parent:
        yield node
        node = node.parent


def _ambiguous(key: int) -> ConfigError:
    return ConfigError(
        f"block key {key} stands for two different prefixes",
        where="the prompts' prefix keys",
        hint="a block id of a trace stands for its block and all before it",
    )
