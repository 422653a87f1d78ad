"""dfs-weight: depth first through the tree of cached prefixes, where most requests wait.

From the root, the branch with the largest weight (the most requests in it) is walked first, and all of it before the next one.
The requests at a node go after those below it. So requests that share a cached prefix are admitted one after the other, while
it is cached. Ties go to the branch with the earliest arrival.

    root - - - [A B]  3 requests         the order: those at [A B C], then those at [A B] itself,
      |          |
      |        [A B C]  2 of them        then those at [X], then those that find nothing in the cache
      |
      + - - - - [X]  2 requests

The tree is that of `PrefixIndex`. Each of its nodes has a `_WalkNode`, which keeps its branches and its requests sorted. Where
a request came, moved or left, only the path from there to the root is sorted again, from the leaves up: a branch is taken out
of its parent's list under the entry it had, and put in under the new one.

The order of a pass is that of its beginning. The walk is a generator that stands where it has come to; the requests that were
admitted stay in the tree until the pass ends, because their leaving would change the weights.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TypeAlias

from maitred.core.contracts import StepView, WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.prefix_orders import CacheAwarePolicy, CacheAwareQueue
from maitred.queueing.prefix_tree import PrefixNode, WaitingRequest

WalkRank: TypeAlias = tuple[bool, int, int]
"""Of a request: whether it is deprioritized, its arrival and its arrival index. The smaller goes first; unique."""


@SCHEDULERS.register("dfs-weight")
class DepthFirstByWeight(CacheAwarePolicy):
    """Depth first through the tree of cached prefixes, the branch with most waiting requests first (SGLang `dfs-weight`).
    Deprioritized requests go last among those at the same node."""

    about = PolicyInfo(
        summary="depth first through the tree of cached prefixes, where most requests wait",
        complexity="O(branches on its path) per request, and per change of its cached prefix",
        starves="requests with nothing in the cache, or with a prefix that few share",
        cache_aware=CacheAware.YES,
    )

    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        return _DfsWeightQueue(index)


class _WalkNode:
    """A node of the tree with what the walk needs. All three lists are sorted, and no two entries of one tie."""

    __slots__ = ("branch_ranks", "branches", "entry", "parent", "waiting")

    def __init__(self) -> None:
        self.branches: list[tuple[int, WalkRank, _WalkNode]] = []
        """The branches by negative weight, then rank."""
        self.branch_ranks: list[WalkRank] = []
        """The ranks of the branches, smallest first. (`branches` is in the order of weights.)"""
        self.waiting: list[tuple[WalkRank, WaitingRequest]] = []
        """The requests at this node, by rank."""
        self.parent: _WalkNode | None = None
        """The node that has this one in its lists, or None if there is none."""
        self.entry: tuple[int, WalkRank] = (0, (False, 0, 0))
        """How it is listed there: its negative weight, and the first rank among the requests here and below."""


class _DfsWeightQueue(CacheAwareQueue):
    def __init__(self, index: PrefixIndex) -> None:
        super().__init__(index)
        self._nodes: dict[PrefixNode, _WalkNode] = {index.tree.root: _WalkNode()}
        self._position_of: dict[WaitingRequest, tuple[_WalkNode, WalkRank]] = {}
        self._walk: Iterator[WaitingRequest] | None = None
        """The order of this pass, or None if the pass has not begun, or requests came or left meanwhile."""
        self._next: WaitingRequest | None = None
        """The head: the request that the walk yielded last."""
        self._admitted: list[WaitingRequest] = []
        """Requests admitted in this pass, which are still in the tree."""

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._end_pass()
        super().add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        self._end_pass()
        return super().remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._end_pass()
        super().on_step_start(step, now)

    def first_waiting(self) -> WaitingRequest | None:
        if self._walk is None:
            self._update_nodes()
            self._walk = _walk(self._nodes[self._index.tree.root])
            self._next = next(self._walk, None)
        return self._next

    def on_admitted(self, waiting: WaitingRequest) -> None:
        assert self._walk is not None
        self._admitted.append(waiting)
        self._next = next(self._walk, None)

    def _end_pass(self) -> None:
        if self._walk is None:
            return
        self._walk = self._next = None
        # Only now do the admitted requests leave the tree: earlier, the branch that is being walked would lose weight
        # with each of them and might fall behind another one.
        for waiting in self._admitted:
            self._index.admit(waiting)
        self._admitted.clear()

    def _update_nodes(self) -> None:
        """Sort again what changed in the tree.

        All changed nodes are taken out of their parents' lists before any is put in. They are put in deepest first, because the
        entry of a node depends on those below it.
        """
        changed, dirty = self._index.changed, self._index.tree.dirty
        for waiting in changed:
            self._update_waiting(waiting)
        changed.clear()
        nodes = sorted((node for node in dirty if node.parent is not None), key=lambda node: -node.start)
        dirty.clear()
        for node in nodes:
            self._detach(self._walk_node(node))
        for node in nodes:
            if node.weight:
                self._attach(node)
            else:
                del self._nodes[node]

    def _update_waiting(self, waiting: WaitingRequest) -> None:
        """Move `waiting` to the list of the node that it waits at now, if any."""
        before, after = self._position_of.pop(waiting, None), None
        if waiting.node is not None:
            arrival, index = waiting.arrival_rank
            after = self._position_of[waiting] = (self._walk_node(waiting.node), (waiting.deprioritized, arrival, index))
        # A node that only loses blocks keeps its requests where they are.
        if after == before:
            return
        if before is not None:
            walk_node, rank = before
            del walk_node.waiting[bisect_left(walk_node.waiting, (rank,))]
        if after is not None:
            walk_node, rank = after
            insort(walk_node.waiting, (rank, waiting))

    def _detach(self, walk_node: _WalkNode) -> None:
        """Take `walk_node` out of its parent's lists."""
        parent = walk_node.parent
        if parent is not None:
            del parent.branches[bisect_left(parent.branches, walk_node.entry)]
            del parent.branch_ranks[bisect_left(parent.branch_ranks, walk_node.entry[1])]
            walk_node.parent = None

    def _attach(self, node: PrefixNode) -> None:
        """Sort `node` in among its siblings. The nodes below it are sorted in already."""
        assert node.parent is not None
        walk_node, parent = self._walk_node(node), self._walk_node(node.parent)
        # Both lists are sorted, so the first rank of the whole branch is the first of one of them: O(1) instead of a
        # walk.
        rank = min([rank for rank, _ in walk_node.waiting[:1]] + walk_node.branch_ranks[:1])
        walk_node.parent, walk_node.entry = parent, (-node.weight, rank)
        insort(parent.branches, (*walk_node.entry, walk_node))
        insort(parent.branch_ranks, rank)

    def _walk_node(self, node: PrefixNode) -> _WalkNode:
        walk_node = self._nodes.get(node)
        if walk_node is None:
            walk_node = self._nodes[node] = _WalkNode()
        return walk_node


def _walk(root: _WalkNode) -> Iterator[WaitingRequest]:
    """Yield the requests depth first. The stack holds the nodes on the way down, each with its branches still to come."""
    stack = [(root, iter(root.branches))]
    while stack:
        node, branches = stack[-1]
        branch = next(branches, None)
        if branch is not None:
            stack.append((branch[2], iter(branch[2].branches)))
        else:
            yield from (waiting for _, waiting in node.waiting)
            stack.pop()
