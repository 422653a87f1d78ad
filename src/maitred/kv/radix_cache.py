"""Leaves: the leaves of the radix tree that may be evicted, the first to go first.

A heap whose entries may be out of date: a node names its valid one, and one that is used again gets another. What is out of
date is dropped when it comes up, or when it is more than half of the heap.

RadixCache: KV memory as SGLang remembers it, a tree of runs of pages (here: blocks), evicted leaf by leaf.

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
from heapq import heapify, heappop, heappush

from maitred.core.contracts import PrefixCacheListener
from maitred.core.errors import ConfigError, InvariantError
from maitred.kv.eviction import EvictionPolicy, LeastRecentlyUsed, Rank
from maitred.kv.prefix_cache import CacheListeners, CacheLock, PrefixCache
from maitred.kv.radix_node import RadixNode


class EvictableLeaves:
    __slots__ = ("_heap", "_next_entry", "_num_valid", "_rank")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._rank = policy.rank
        self._heap: list[tuple[Rank, int, int, RadixNode]] = []
        """Rank, last use, the name of the entry, and whose it is."""
        self._next_entry = 0
        self._num_valid = 0

    def __len__(self) -> int:
        return self._num_valid

    def add(self, node: RadixNode) -> None:
        """`node` was used, is no longer locked, or has lost a child: if it can be evicted, this is its rank now."""
        if node.children or node.num_locks or not node.parent:
            return
        self.remove(node)
        self._num_valid += 1
        self._next_entry += 1
        node.heap_entry = self._next_entry
        heappush(self._heap, (self._rank(node), node.last_used, node.heap_entry, node))
        if len(self._heap) > 2 * self._num_valid + 16:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].heap_entry]
            heapify(self._heap)

    def remove(self, node: RadixNode) -> None:
        """`node` cannot be evicted, at least for now."""
        if node.heap_entry:
            node.heap_entry = 0
            self._num_valid -= 1

    def pop(self) -> RadixNode:
        """Take the first to go. Raises IndexError when there is none."""
        while True:
            _, _, entry, node = heappop(self._heap)
            if entry == node.heap_entry:
                self.remove(node)
                return node

    def nodes(self) -> set[RadixNode]:
        return {node for _, _, entry, node in self._heap if entry == node.heap_entry}


UNBOUNDED = 1 << 62


class RadixLock(CacheLock):
    num_counted_hits: int = 0
    """So many leading blocks have been counted as a hit."""

    def __init__(self, num_committed: int, node: RadixNode, priority: float) -> None:
        super().__init__(num_committed)
        self.node = node
        """Where the published blocks end."""
        self.priority = priority


class RadixCache(PrefixCache[RadixLock]):
    """The KV memory of one instance, or without `total` a tree alone. See `PrefixCache`."""

    def __init__(self, block_size: int, total: int = UNBOUNDED, eviction: EvictionPolicy | None = None) -> None:
        """`eviction` None: lru. Raises ValueError unless `total` and `block_size` (in tokens) are at least 1."""
        if total < 1 or block_size < 1:
            raise ValueError("a cache has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._clock = 0
        self._root = RadixNode(None, [], 0, 0)
        self._node_by_hash: dict[int, RadixNode] = {}
        """key -> the node that has it"""
        self._num_referenced = 0
        self._num_private = 0
        """Blocks taken whose content is not published."""
        self._num_unassigned = 0
        self._evictable_leaves = EvictableLeaves(eviction or LeastRecentlyUsed())
        self._locks: set[RadixLock] = set()
        self._listeners = CacheListeners()

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def total(self) -> int:
        return self._total

    @property
    def free(self) -> int:
        return self._total - self._num_referenced - self._num_private

    @property
    def evictable(self) -> int:
        self.apply_evictions()
        return len(self._node_by_hash) - self._num_referenced

    @property
    def free_uncached(self) -> int:
        return self.free - self.evictable

    @property
    def referenced(self) -> int:
        return self._num_referenced

    @property
    def root(self) -> RadixNode:
        """The tree, for policies that weigh it; not to be changed."""
        self.apply_evictions()
        return self._root

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self._listeners.add(listener)

    def contains(self, block_hash: int) -> bool:
        self.apply_evictions()
        return block_hash in self._node_by_hash

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.apply_evictions()
        return self._num_present(block_hashes)

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        count = self.num_cached_blocks(block_hashes)
        node = self._node_by_hash[block_hashes[count - 1]] if count else self._root
        while node.parent and not node.num_locks:
            node = node.parent
        return max(0, count - node.end_position)

    def touch(self, block_hashes: Sequence[int]) -> int:
        count = self.num_cached_blocks(block_hashes)
        self._use_prefix(block_hashes, count, 0, self._root)
        return count

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> RadixLock:
        count = self.num_cached_blocks(block_hashes)
        node = self._use_prefix(block_hashes, count, 0, self._root)
        self._lock_path(node, self._root)
        lock = RadixLock(count, node, priority)
        self._locks.add(lock)
        return lock

    def reserve(self, blocks: int) -> None:
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks are to be taken, {self.free} are free")
        self._num_private += blocks
        self._num_unassigned += blocks

    def assign(self, lock: RadixLock, blocks: int) -> None:
        if blocks > self._num_unassigned:
            raise ValueError(f"{blocks} blocks are claimed, {self._num_unassigned} were taken")
        self._num_unassigned -= blocks
        lock.num_private += blocks

    def commit_blocks(self, lock: RadixLock, block_hashes: Sequence[int]) -> None:
        """Raises ConfigError, too, for keys that do not stand for their whole prefix."""
        if len(block_hashes) > lock.num_private:
            raise ValueError(f"{len(block_hashes)} blocks have content, {lock.num_private} are held without")
        self.apply_evictions()
        present = self._num_present(block_hashes)
        node = self._use_prefix(block_hashes, present, lock.num_committed, lock.node)
        self._count_hit(node, lock)
        if present < len(block_hashes):
            node = self._add_leaf(node, list(block_hashes[present:]), lock.priority)
        self._num_private -= len(block_hashes)
        lock.num_private -= len(block_hashes)
        lock.num_committed += len(block_hashes)
        self._lock_path(node, lock.node)
        lock.node = node
        lock.num_counted_hits = node.end_position

    def release(self, lock: RadixLock) -> None:
        self.apply_evictions()
        self._locks.remove(lock)
        self._num_private -= lock.num_private
        node = lock.node
        while node.parent:
            node.num_locks -= 1
            if not node.num_locks:
                self._num_referenced -= len(node.block_hashes)
                self._evictable_leaves.add(node)
            node = node.parent

    def release_private(self, lock: RadixLock, num_full: int, block_hashes: Callable[[], Sequence[int]]) -> None:
        """In a tree everything has its place, and so a name."""
        if num_full:
            self.commit_blocks(lock, block_hashes())
        self.release(lock)

    def evict(self, blocks: int) -> int:
        self.apply_evictions()
        return self._evict(blocks)

    def apply_evictions(self) -> None:
        excess = len(self._node_by_hash) + self._num_private - self._total
        if excess > 0:
            self._evict(excess)

    def check(self) -> None:
        self.apply_evictions()
        nodes = list(self._nodes())
        self._check_tree(nodes)
        held = Counter(node for lock in self._locks for node in _path_to_root(lock.node))
        if any(node.num_locks != held[node] for node in nodes) or any(
            lock.node.end_position != lock.num_committed for lock in self._locks
        ):
            raise InvariantError("radix tree: lock references are not what the locks hold")
        plain = sum(lock.num_private for lock in self._locks) + self._num_unassigned
        protected = sum(len(node.block_hashes) for node in nodes if node.num_locks)
        if plain != self._num_private or protected != self._num_referenced or len(self._node_by_hash) + plain > self._total:
            raise InvariantError(
                f"KV blocks: {plain} plain (said {self._num_private}), {protected} protected (said {self._num_referenced}),"
                f" {len(self._node_by_hash)} cached, {self._total} in all"
            )

    def _check_tree(self, nodes: Sequence[RadixNode]) -> None:
        for node in nodes:
            parent = node.parent
            if not (parent and node.block_hashes and parent.children.get(node.block_hashes[0]) is node):
                raise InvariantError("radix tree: a node is not where its parent says")
            if node.end_position != parent.end_position + len(node.block_hashes):
                raise InvariantError("radix tree: a node does not end where its parent and its keys say")
        keys = [(key, node) for node in nodes for key in node.block_hashes]
        if dict(keys) != self._node_by_hash or len(keys) != len(self._node_by_hash):
            raise InvariantError("radix tree: the index is not what the nodes say")
        leaves = {node for node in nodes if not (node.num_locks or node.children)}
        if self._evictable_leaves.nodes() != leaves or len(self._evictable_leaves) != len(leaves):
            raise InvariantError("radix tree: other leaves would be evicted than those that can be")

    def _nodes(self) -> Iterator[RadixNode]:
        """All but the root."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _num_present(self, keys: Sequence[int]) -> int:
        """Cached prefixes have no holes: how many of `keys`, which continue a cached prefix, are cached."""
        where = self._node_by_hash
        return bisect_left(keys, True, key=lambda key: key not in where)

    def _use_prefix(self, keys: Sequence[int], count: int, start: int, base: RadixNode) -> RadixNode:
        """The node that ends with the first `count` of `keys`, which come after `start` blocks that end in `base`. Makes it if
        a split will do, and marks it and all above as used."""
        self._clock += 1
        node, end = self._node_by_hash[keys[count - 1]] if count else base, start + count
        wanted = list(keys[:count])
        if end > node.end_position:
            raise _ambiguous_hash_error(keys[count - 1])
        for used in _path_to_root(node):
            used.last_used = self._clock
            first = used.end_position - len(used.block_hashes) - start
            if first >= 0 and used.block_hashes[: end - start - first] != wanted[first : used.end_position - start]:
                raise _ambiguous_hash_error(keys[count - 1])
        if node.heap_entry:
            self._evictable_leaves.add(node)
        return node if end == node.end_position else self._split(node, end - node.end_position)

    def _split(self, node: RadixNode, offset: int) -> RadixNode:
        """Cut `node` before its last `-offset` blocks; what comes before becomes a node of its own, which is returned."""
        assert node.parent
        self._clock += 1
        upper = RadixNode(node.parent, node.block_hashes[:offset], node.end_position + offset, self._clock)
        upper.num_locks, upper.hits, upper.priority = node.num_locks, node.hits, node.priority
        node.parent.children[upper.block_hashes[0]] = upper
        node.parent = upper
        node.block_hashes = node.block_hashes[offset:]
        upper.children[node.block_hashes[0]] = node
        self._node_by_hash.update(dict.fromkeys(upper.block_hashes, upper))
        return upper

    def _add_leaf(self, node: RadixNode, keys: list[int], priority: float) -> RadixNode:
        """A leaf of `keys` below `node`."""
        distinct = dict.fromkeys(keys)
        if len(distinct) != len(keys) or not self._node_by_hash.keys().isdisjoint(distinct):
            raise _ambiguous_hash_error(next(key for key in reversed(keys) if key in self._node_by_hash or keys.count(key) > 1))
        self._clock += 1
        leaf = RadixNode(node, keys, node.end_position + len(keys), self._clock)
        leaf.hits, leaf.priority = 1, priority
        node.children[keys[0]] = leaf
        self._evictable_leaves.remove(node)
        self._node_by_hash.update(dict.fromkeys(keys, leaf))
        self._listeners.notify_stored(keys)
        return leaf

    def _count_hit(self, node: RadixNode, lock: RadixLock) -> None:
        """`lock` publishes the prefix that ends in `node`."""
        while node.parent:
            if node.end_position > lock.num_counted_hits:
                node.hits += 1
            node.priority = max(node.priority, lock.priority)
            node = node.parent

    def _lock_path(self, node: RadixNode, above: RadixNode) -> None:
        """Lock `node` and its parents below `above`."""
        while node is not above:
            if not node.num_locks:
                self._num_referenced += len(node.block_hashes)
                self._evictable_leaves.remove(node)
            node.num_locks += 1
            assert node.parent
            node = node.parent

    def _evict(self, blocks: int) -> int:
        freed = 0
        while freed < blocks and self._evictable_leaves:
            node = self._evictable_leaves.pop()
            self._remove_leaf(node)
            freed += len(node.block_hashes)
        return freed

    def _remove_leaf(self, leaf: RadixNode) -> None:
        parent, keys = leaf.parent, leaf.block_hashes
        assert parent
        del parent.children[keys[0]]
        for key in keys:
            del self._node_by_hash[key]
        self._listeners.notify_removed(keys[::-1])
        self._evictable_leaves.add(parent)


def _path_to_root(node: RadixNode) -> Iterator[RadixNode]:
    """`node` and its parents, without the root."""
    while node.parent:
        yield node
        node = node.parent


def _ambiguous_hash_error(key: int) -> ConfigError:
    return ConfigError(
        f"block key {key} stands for two different prefixes",
        where="the prompts' prefix keys",
        hint="a block id of a trace stands for its block and all before it",
    )
