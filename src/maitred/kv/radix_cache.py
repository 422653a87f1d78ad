"""RadixCache: KV memory as SGLang remembers it, a tree of runs of pages (here: blocks), evicted leaf by leaf.

Each node is a run of blocks that were committed together; where two prompts part, the run is split. A lock counts on every node
from the end of its prefix up to the root, and only leaves without locks are evicted, each as a whole. So a cached prefix never
has a hole, and how many leading blocks of a prompt are cached is found by bisection, without walking.

    evict(n):   leaves by the rank of the eviction policy, the smallest first, until n blocks are free (perhaps more);
                a parent that has lost its last child is a leaf like any other

Using a prefix (`lock`, `commit_blocks`) makes its nodes recent, all the way up, and splits the last one where it ends.
Looking (`num_cached_blocks`, `num_unreferenced`, `contains`) does neither.

What is cached already is not kept twice: `commit_blocks` gives back the duplicates. What is committed together is one node, so
committing late is committing otherwise: an instance commits when a chunk of prefill ends and when a sequence does, and never
while it decodes, as SGLang does. Eviction is lazy all the same.

An answer of which nothing is known (`release_private`) is a leaf like any other, but without hashes.

Namespaces need no care: their hashes differ (`kv.block_hashes`). Without `total` the tree has as much memory as is asked for:
the scratch tree by which SGLang finds equal prompts within one batch.

Example: the prompts 1 2 3 4 and then 1 2 5 6 are computed, in blocks. The second one splits the node of the first:

    root ── [1 2] ─┬─ [3 4]
                   └─ [5 6]

`evict(1)` then evicts [3 4], the least recently used leaf, as a whole.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from maitred.core.errors import ConfigError, InvariantError
from maitred.kv.eviction import EvictionPolicy, LeastRecentlyUsed
from maitred.kv.key_ranges import KeyRanges
from maitred.kv.prefix_cache import CacheLock, PrefixCache
from maitred.kv.radix_index import NodeIndex
from maitred.kv.radix_node import FIRST_PRIVATE_KEY, EvictableLeaves, RadixNode

UNBOUNDED = 1 << 62


class RadixLock(CacheLock):
    """The lock of a `RadixCache`."""

    num_counted_hits: int = 0
    """Leading blocks in nodes that have counted this lock as a hit."""

    def __init__(self, num_committed: int, node: RadixNode, priority: float) -> None:
        super().__init__(num_committed)
        self.node = node
        """The node in which the committed blocks end."""
        self.priority = priority


class RadixCache(PrefixCache[RadixLock]):
    """The KV memory of one instance, or without `total` a tree alone. See `PrefixCache` for the methods."""

    def __init__(self, block_size: int, total: int = UNBOUNDED, eviction: EvictionPolicy | None = None) -> None:
        """`eviction` is lru by default. Raises ValueError unless `total` and `block_size` (in tokens) are at least 1."""
        super().__init__(total, block_size)
        self._clock = 0
        self._root = RadixNode(None, [], 0, 0)
        self._index = NodeIndex()
        self._num_cached = 0
        """Blocks in the tree."""
        self._num_private_leaves = 0
        """Private leaves made so far."""
        self._num_referenced = 0
        self._leaves = EvictableLeaves(eviction or LeastRecentlyUsed())
        self._hits_to_copy = 0
        self._copy: Callable[[Sequence[int]], None] | None = None

    def copy_used(self, hits: int, copy: Callable[[Sequence[int]], None]) -> None:
        """Call `copy` with the blocks of a named node each time that it is used, from its use number `hits` on."""
        self._hits_to_copy, self._copy = hits, copy

    @property
    def evictable(self) -> int:
        self.apply_evictions()
        return self._num_cached - self._num_referenced

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

    def contains(self, block_hash: int) -> bool:
        self.apply_evictions()
        return self._index.get(block_hash) is not None

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.apply_evictions()
        return self._index.num_leading(block_hashes)

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        count = self.num_cached_blocks(block_hashes)
        node = self._node_of(block_hashes[count - 1]) if count else self._root
        while node.parent and not node.num_locks:
            node = node.parent
        return max(0, count - node.end_position)

    def num_held_by_alone(self, locks: Sequence[RadixLock]) -> int:
        counts = Counter([node for lock in locks for node in _path_to_root(lock.node)])
        return sum([len(node.block_hashes) for node, count in counts.items() if count == node.num_locks])

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> RadixLock:
        count = self.num_cached_blocks(block_hashes)
        node = self._use_prefix(block_hashes, count, 0, self._root)
        self._lock_path(node, self._root)
        lock = RadixLock(count, node, priority)
        self._locks.add(lock)
        return lock

    def commit_blocks(self, lock: RadixLock, block_hashes: Sequence[int]) -> None:
        """Raises ConfigError, too, for hashes that do not stand for their whole prefix."""
        count = len(block_hashes)
        if count > lock.num_private:
            raise ValueError(f"{count} blocks are to be full, {lock.num_private} are private")
        self.apply_evictions()
        present = self._index.num_leading(block_hashes)  # they continue a cached prefix, which has no holes
        node = self._use_prefix(block_hashes, present, lock.num_committed, lock.node)
        self._count_hit(node, lock)
        if present < count:
            node = self._add_named_leaf(node, block_hashes[present:], lock.priority)
        self._extend_lock(lock, node, count)

    def _extend_lock(self, lock: RadixLock, node: RadixNode, count: int) -> None:
        """Let `lock` hold all up to `node`, which ends `count` blocks after what it has committed."""
        self._take_private(lock, count)
        lock.num_committed += count
        # All private blocks are given back, and locking the path takes only what no lock held. So duplicates of blocks that
        # another lock holds are free again.
        self.free += count
        self._lock_path(node, lock.node)
        lock.node = node
        lock.num_counted_hits = node.end_position

    def release(self, lock: RadixLock) -> None:
        self.apply_evictions()
        self._locks.remove(lock)
        node, end = lock.node, lock.node.end_position
        while node.parent and node.num_locks == 1:
            node.num_locks = 0
            if not node.children:
                self._leaves.add(node)
            node = node.parent
        unlocked = end - node.end_position
        self._num_referenced -= unlocked
        self.free += lock.num_private + unlocked
        while node.parent:
            node.num_locks -= 1
            node = node.parent

    def release_private(self, lock: RadixLock, num_full: int) -> None:
        """Free all blocks of `lock`; see the base. The full ones become a leaf without hashes."""
        if num_full > lock.num_private:
            raise ValueError(f"{num_full} blocks are to be full, {lock.num_private} are private")
        if num_full:
            self.apply_evictions()
            node = self._use_prefix((), 0, lock.num_committed, lock.node)
            self._count_hit(node, lock)
            # No request finds it, so it has a number instead of hashes, and costs the same however long it is.
            self._num_private_leaves += 1
            key = FIRST_PRIVATE_KEY - self._num_private_leaves
            leaf = RadixNode(node, range(num_full), node.end_position + num_full, self._clock + 1)
            self._add_leaf(leaf, key, lock.priority)
            self._extend_lock(lock, leaf, num_full)
        self.release(lock)

    def evict(self, blocks: int) -> int:
        self.apply_evictions()
        return self._evict(blocks)

    def apply_evictions(self) -> None:
        if not self._pending_evictions:
            return
        self._pending_evictions = 0
        # Cached blocks without a lock lie in free memory. Blank blocks are taken first, so only what no longer fits there
        # must go.
        excess = self._num_cached - self._num_referenced - self.free
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
        private = sum(lock.num_private for lock in self._locks) + self.num_unassigned
        referenced = sum(len(node.block_hashes) for node in nodes if node.num_locks)
        cached = self._num_cached
        balances = self.free + referenced + private == self.total
        if not balances or referenced != self._num_referenced or cached + private > self.total:
            raise InvariantError(
                f"KV blocks: {private} private, {referenced} referenced (counted {self._num_referenced}), {cached} cached,"
                f" {self.free} free, {self.total} in all"
            )

    def _check_tree(self, nodes: Sequence[RadixNode]) -> None:
        for node in nodes:
            parent = node.parent
            if not (parent and node.block_hashes and parent.children.get(node.key) is node):
                raise InvariantError("radix tree: a node is not where its parent says")
            if node.end_position != parent.end_position + len(node.block_hashes):
                raise InvariantError("radix tree: a node does not end where its parent and its blocks say")
        named = [node for node in nodes if not node.is_private]
        owners = [(block_hash, node) for node in named for block_hash in node.block_hashes]
        if dict(owners) != self._index.by_hash() or len(owners) != len(dict(owners)):
            raise InvariantError("radix tree: the index is not what the nodes say")
        if sum(len(node.block_hashes) for node in nodes) != self._num_cached:
            raise InvariantError("radix tree: the nodes do not have as many blocks as are counted")
        if any(node.key != node.block_hashes[0] for node in named):
            raise InvariantError("radix tree: a node has another key than its first hash")
        leaves = {node for node in nodes if not (node.num_locks or node.children)}
        if self._leaves.nodes() != leaves or len(self._leaves) != len(leaves):
            raise InvariantError("radix tree: other leaves would be evicted than those that can be")

    def _nodes(self) -> Iterator[RadixNode]:
        """Yield all nodes but the root."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _node_of(self, block_hash: int) -> RadixNode:
        """Return the node of a block that is cached."""
        node = self._index.get(block_hash)
        assert node is not None
        return node

    def _use_prefix(self, block_hashes: Sequence[int], count: int, start: int, base: RadixNode) -> RadixNode:
        """Return the node that ends with the first `count` of `block_hashes`, which follow `start` blocks that end in `base`.
        Make it if a split will do, and mark it as used."""
        self._clock += 1
        node, end = self._node_of(block_hashes[count - 1]) if count else base, start + count
        if end > node.end_position:
            raise _ambiguous_hash_error(block_hashes[count - 1])
        # A trace with ids that stand for their block alone would find prefixes that are not there. So what a hash promises,
        # that it stands for all before it, is checked: at once where all of both is known as ranges, else node by node.
        node.last_used = self._clock  # also of the part of the last run that is not asked for, as in SGLang
        if count and not _begins_path(node, block_hashes, start, end):
            for used in _path_to_root(node):
                first = used.end_position - len(used.block_hashes) - start
                if first >= 0 and not _agree(used.block_hashes, block_hashes, first, count):
                    raise _ambiguous_hash_error(block_hashes[count - 1])
        if node.heap_entry:
            self._leaves.add(node)
        return node if end == node.end_position else self._split(node, end - node.end_position)

    def _split(self, node: RadixNode, offset: int) -> RadixNode:
        """Cut `node` before its last `-offset` blocks. What comes before becomes a node of its own, which is returned."""
        assert node.parent
        self._clock += 1
        upper = RadixNode(node.parent, node.block_hashes[:offset], node.end_position + offset, self._clock)
        upper.num_locks, upper.hits, upper.priority = node.num_locks, node.hits, node.priority
        if node.path_hashes is not None:
            upper.path_hashes = node.path_hashes.head(upper.end_position)
        node.parent.children[upper.key] = upper
        node.parent = upper
        whole, node.block_hashes = node.block_hashes, node.block_hashes[offset:]
        node.key = node.block_hashes[0]
        # The lower part keeps the object, since locks and the heap refer to the node in which a prefix ends.
        upper.children[node.key] = node
        self._index.move(whole, upper, node)
        return upper

    def _add_named_leaf(self, node: RadixNode, block_hashes: Sequence[int], priority: float) -> RadixNode:
        """Return a new leaf of `block_hashes` below `node`, where they are found."""
        leaf = RadixNode(node, block_hashes, node.end_position + len(block_hashes), self._clock + 1)
        if not self._index.add(block_hashes, leaf):
            known = self._index.get
            repeated = (each for each in reversed(block_hashes) if known(each) is not None or block_hashes.count(each) > 1)
            raise _ambiguous_hash_error(next(repeated))
        if isinstance(block_hashes, KeyRanges):
            whole = block_hashes.with_before(node.end_position)
            if whole is not None and (not node.parent or _begins_path(node, whole, 0, node.end_position)):
                leaf.path_hashes = whole
        self._add_leaf(leaf, block_hashes[0], priority)
        self._notify_stored(block_hashes)
        if self._copy is not None and self._hits_to_copy <= 1:
            self._copy(block_hashes)
        return leaf

    def _add_leaf(self, leaf: RadixNode, key: int, priority: float) -> None:
        """Put a new leaf below its parent."""
        self._clock += 1
        leaf.key, leaf.hits, leaf.priority = key, 1, priority
        assert leaf.parent is not None
        leaf.parent.children[key] = leaf
        self._leaves.remove(leaf.parent)
        self._num_cached += len(leaf.block_hashes)

    def _count_hit(self, node: RadixNode, lock: RadixLock) -> None:
        """Count that `lock` commits the prefix that ends in `node`, in all nodes of it that have not counted the lock yet."""
        counted, priority = lock.num_counted_hits, lock.priority
        while node.parent and node.end_position > counted:
            node.hits += 1
            node.priority = priority if priority > node.priority else node.priority
            if self._copy is not None and node.hits >= self._hits_to_copy and not node.is_private:
                self._copy(node.block_hashes)
            node = node.parent

    def _lock_path(self, node: RadixNode, above: RadixNode) -> None:
        """Lock `node` and its parents below `above`."""
        end = node.end_position
        while node is not above and not node.num_locks:
            node.num_locks = 1
            if node.heap_entry:
                self._leaves.remove(node)
            assert node.parent
            node = node.parent
        locked = end - node.end_position
        self._num_referenced += locked
        self.free -= locked
        while node is not above:  # what is above a locked node is locked
            node.num_locks += 1
            assert node.parent
            node = node.parent

    def _evict(self, blocks: int) -> int:
        evicted = 0
        while evicted < blocks and self._leaves:
            leaf = self._leaves.pop()
            parent, block_hashes = leaf.parent, leaf.block_hashes
            assert parent
            del parent.children[leaf.key]
            if not leaf.is_private:
                self._index.remove(block_hashes)
                if self._listeners:
                    self._notify_removed(block_hashes[::-1])
            parent.last_used = max(parent.last_used, leaf.last_used)
            self._leaves.add(parent)
            self._num_cached -= len(block_hashes)
            evicted += len(block_hashes)
        return evicted


def _begins_path(node: RadixNode, block_hashes: Sequence[int], start: int, end: int) -> bool:
    """Return whether it is known at once that the first `end` blocks up to `node` are those of which `block_hashes` are the
    part from `start` on."""
    path = node.path_hashes
    if path is None or not isinstance(block_hashes, KeyRanges):
        return False
    whole = block_hashes.with_before(start)
    return whole is not None and path.num_common(whole, 0) >= end


def _agree(node: Sequence[int], block_hashes: Sequence[int], first: int, count: int) -> bool:
    """Return whether the blocks of a node are those of `block_hashes` from `first` on, as far as it has `count` blocks."""
    blocks = min(len(node), count - first)
    if isinstance(node, list) and isinstance(block_hashes, list):
        return node[:blocks] == block_hashes[first : first + blocks]
    if isinstance(node, KeyRanges) and isinstance(block_hashes, KeyRanges):
        return node.num_common(block_hashes, first) >= blocks
    return list(node[:blocks]) == list(block_hashes[first : first + blocks])


def _path_to_root(node: RadixNode) -> Iterator[RadixNode]:
    """Yield `node` and its parents, without the root."""
    while node.parent:
        yield node
        node = node.parent


def _ambiguous_hash_error(block_hash: int) -> ConfigError:
    return ConfigError(
        f"block key {block_hash} stands for two different prefixes",
        where="the prompts' prefix keys",
        hint="a block id of a trace stands for its block and all before it",
    )
