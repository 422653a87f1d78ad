"""The cached prefixes of waiting requests, as a compressed tree (a radix tree over block hashes).

A *node* is a run of cached blocks that does not branch and on which no request ends but at its last block. So there are few
nodes, however long the prompts are, and moving a request costs the nodes on its path, not its blocks. For example, with

    r1: A B C | D        cached: A B C
    r2: A B | E          cached: A B
    r3: A B C F | G      cached: A B C F        (what follows the bar is not cached)

the tree is

    root --- [A B]  r2, weight 3 --- [C]  r1, weight 2 --- [F]  r3, weight 1

where the *weight* of a node is the number of requests that wait there or below. If C is evicted, `retreat(C)` removes [C] and
[F], and r1 and r3 wait at [A B]. If E is cached, `advance` makes a node [E] below [A B] for r2; [A B] then holds no request,
but it stays because it branches. When r2 leaves, [E] goes too, and [A B] is merged with its only child into [A B C].

A node is made for the first request that waits there or below, split where a request ends or branches off inside it, merged
with its only child when nothing waits at its end any more, and removed with the last request.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maitred.core.errors import InvariantError
from maitred.core.sequence import SequenceState
from maitred.kv.block_hashes import common_length


class WaitingRequest:
    """A waiting request and how much of its prompt is cached: its first `depth` blocks, without a gap."""

    __slots__ = ("_block_size", "arrival_rank", "block_hashes", "deprioritized", "depth", "node", "seq")

    def __init__(self, seq: SequenceState, block_hashes: Sequence[int], block_size: int) -> None:
        self.seq = seq
        self.block_hashes = block_hashes
        self._block_size = block_size
        self.depth = 0
        self.node: PrefixNode | None = None
        """The node that it waits at, or None if it waits no more."""
        self.deprioritized = False
        """Whether another request computes the beginning of its prompt, or is to do so first (see `InBatchDedup`)."""
        self.arrival_rank = (seq.request.arrival, seq.arrival_index)
        """What ties are broken by; unique."""

    @property
    def matched_tokens(self) -> int:
        """Tokens that need not be computed. At least one must be, because the first output token comes from it."""
        cached, most = self.depth * self._block_size, self.seq.num_tokens_to_prefill - 1
        return cached if cached < most else most

    @property
    def uncached_tokens(self) -> int:
        """Tokens to compute, at least 1; after a preemption with the output tokens so far."""
        uncached = self.seq.num_tokens_to_prefill - self.depth * self._block_size
        return uncached if uncached > 1 else 1


class PrefixNode:
    """A run of cached blocks, `keys` (block hashes). The first of them is block `start` of its prompts, counted from
    0."""

    __slots__ = ("children", "end", "keys", "parent", "start", "waiting", "weight")

    def __init__(self, parent: PrefixNode | None, start: int, keys: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.end = start + len(keys)
        """How many blocks the prefix has that ends with this node: `start` and its `keys`."""
        self.keys = keys
        self.children: dict[int, PrefixNode] = {}
        """The children by their first block."""
        self.waiting: dict[WaitingRequest, None] = {}
        """The requests that have a cached prefix up to the end of this node."""
        self.weight = 0
        """The number of requests that wait here or below; 0 if the node is removed."""

    def attach(self, requests: Iterable[WaitingRequest]) -> None:
        """Let `requests` wait at this node."""
        end = self.end
        for request in requests:
            self.waiting[request] = None
            request.node, request.depth = self, end

    def subtree(self) -> list[WaitingRequest]:
        """Return the requests that wait here or below."""
        nodes = [self]
        requests: list[WaitingRequest] = []
        while nodes:
            node = nodes.pop()
            requests.extend(node.waiting)
            nodes.extend(node.children.values())
        return requests


class WaitingPrefixTree:
    """The nodes, and the node of each block of them."""

    def __init__(self) -> None:
        self.root = PrefixNode(None, 0, [])
        self.node_of_block: dict[int, PrefixNode] = {}
        """The node of each block at which, or below which, some request waits. Others only look things up in it."""
        self.dirty: dict[PrefixNode, None] = {}
        """The nodes, removed ones too, that changed since the queue last cleared this."""

    def insert(self, request: WaitingRequest, depth: int) -> None:
        """Let `request` wait at the end of its first `depth` blocks."""
        node = self._node_at(self.root, request.block_hashes, depth)
        node.attach([request])
        self._add_weight(node, 1)

    def remove(self, request: WaitingRequest) -> None:
        """Take `request` out of the tree."""
        node = request.node
        assert node is not None
        request.node = None
        del node.waiting[request]
        self._add_weight(node, -1)
        self._prune(node)

    def advance(self, requests: Sequence[WaitingRequest], key: int) -> None:
        """Move `requests`, which wait at one node and share all blocks up to `key`, down to the block `key`."""
        start, block_hashes = requests[0].node, requests[0].block_hashes
        assert start is not None
        for request in requests:
            del start.waiting[request]
        depth = block_hashes.index(key, start.end) + 1
        node = self._node_at(start, block_hashes, depth)
        node.attach(requests)
        # The weights of `start` and of the nodes above it contain these requests already.
        self._add_weight(node, len(requests), start)
        self._prune(start)

    def retreat(self, key: int) -> None:
        """Move the requests that wait at the block `key` or below up to the block before it."""
        node = self.node_of_block[key]
        requests = node.subtree()
        num_kept = node.keys.index(key)
        self._discard(list(node.children.values()))
        node.children.clear()
        node.waiting.clear()
        if num_kept:
            for lost in node.keys[num_kept:]:
                del self.node_of_block[lost]
            del node.keys[num_kept:]
            node.end = node.start + num_kept
        else:
            assert node.parent is not None
            del node.parent.children[key]
            self._discard([node])
            node = node.parent
        # The requests stay below the same nodes, so the weights of `node` and of those above it are right already.
        node.attach(requests)

    def mark_dirty(self, node: PrefixNode | None) -> None:
        """Note that a request at `node` has changed, which concerns all nodes above it."""
        self._add_weight(node, 0)

    def check(self) -> None:
        """Raise InvariantError if weights, structure and index do not fit together. For tests; O(blocks)."""
        node_of_block: dict[int, PrefixNode] = {}
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            children = node.children.values()
            if node.weight != len(node.waiting) + sum(child.weight for child in children):
                raise InvariantError(f"node {node.keys}: the weight {node.weight} is not the sum of what waits there and below")
            if node is not self.root and (not node.weight or (len(children) == 1 and not node.waiting)):
                raise InvariantError(f"node {node.keys} is not needed")
            if node.end != node.start + len(node.keys):
                raise InvariantError(f"node {node.keys}: it ends before block {node.end}, but has others")
            if any(child.parent is not node or child.start != node.end for child in children):
                raise InvariantError(f"node {node.keys}: a child does not continue it")
            node_of_block.update(dict.fromkeys(node.keys, node))
            nodes.extend(children)
        if node_of_block != self.node_of_block:
            raise InvariantError("the index of blocks is not what the nodes hold")

    def _discard(self, nodes: list[PrefixNode]) -> None:
        """Remove `nodes` and all below them, at which nothing waits any more."""
        while nodes:
            node = nodes.pop()
            nodes.extend(node.children.values())
            for key in node.keys:
                del self.node_of_block[key]
            node.weight = 0
            self.dirty[node] = None

    def _add_weight(self, node: PrefixNode | None, change: int, below: PrefixNode | None = None) -> None:
        """Add `change` to the weights from `node` up to the root, or up to the node `below`, which it leaves as it is."""
        while node is not below and node is not None:
            node.weight += change
            self.dirty[node] = None
            node = node.parent

    def _node_at(self, node: PrefixNode, block_hashes: Sequence[int], depth: int) -> PrefixNode:
        """Return the node below `node` that ends after the first `depth` blocks, all of which are cached. Makes it if
        needed."""
        while node.end < depth:
            start = node.end
            child = node.children.get(block_hashes[start])
            if child is None:
                return self._add_child(node, list(block_hashes[start:depth]))
            end = min(child.end, depth)
            # A hash stands for the whole prefix up to its block. So if the last blocks are equal, all before them are too.
            if block_hashes[end - 1] != child.keys[end - start - 1]:
                end = start + common_length(block_hashes[start:end], child.keys)
            node = child if end == child.end else self._split(child, end)
        return node

    def _add_child(self, parent: PrefixNode, keys: list[int]) -> PrefixNode:
        node = parent.children[keys[0]] = PrefixNode(parent, parent.end, keys)
        self.node_of_block.update(dict.fromkeys(keys, node))
        return node

    def _split(self, lower: PrefixNode, end: int) -> PrefixNode:
        """Split `lower` after the first `end` blocks of its prompts, and return the new upper part."""
        parent = lower.parent
        assert parent is not None
        count = end - lower.start
        upper = self._add_child(parent, lower.keys[:count])
        # The lower part keeps the object, because requests refer to the node that they wait at the end of.
        upper.weight = lower.weight
        upper.children[lower.keys[count]] = lower
        lower.parent, lower.start, lower.keys = upper, end, lower.keys[count:]
        self.dirty[lower] = None
        return upper

    def _prune(self, node: PrefixNode) -> None:
        """Remove `node` and nodes above it if nothing waits there or below; merge it with an only child if nothing waits at
        it."""
        while not node.weight and node.parent is not None:
            del node.parent.children[node.keys[0]]
            for key in node.keys:
                del self.node_of_block[key]
            node = node.parent
        if node.parent is not None and not node.waiting and len(node.children) == 1:
            self._merge_with_child(node)

    def _merge_with_child(self, upper: PrefixNode) -> None:
        """Put the blocks of `upper` before those of its only child, and remove `upper`."""
        (lower,) = upper.children.values()
        parent = lower.parent = upper.parent
        assert parent is not None
        # The lower node survives, because requests wait at its end and none at the end of the upper one.
        parent.children[upper.keys[0]] = lower
        self.node_of_block.update(dict.fromkeys(upper.keys, lower))
        lower.start, lower.keys = upper.start, upper.keys + lower.keys
        upper.weight = 0
        self.dirty[upper] = self.dirty[lower] = None
