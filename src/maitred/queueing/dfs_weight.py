"""dfs-weight: depth first through the tree of cached prefixes, where most requests wait.

From the root, the branch where most requests stand is gone through first, and all of it, before the next; who stands on a
node goes after those beyond it. So requests that share a cached prefix are admitted one after the other, while it is there.
Ties go to the branch with the one who arrived first.

The tree is `PrefixIndex`'s. Each node keeps its branches and those who stand on it sorted, and where somebody came, moved or
left, only the path from there to the root is sorted in anew. Within a pass the walk stands still where it has come to, and
who has been taken is taken out of the tree at the end of it: the weights of a pass are those at its beginning.
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
"""Whether it is held back, arrival, order: the smaller goes first."""


@SCHEDULERS.register("dfs-weight")
class DepthFirstByWeight(CacheAwarePolicy):
    """See the module (SGLang `dfs-weight`). Who is held back goes last among those on the same node."""

    about = PolicyInfo(
        summary="depth first through the tree of cached prefixes, where most requests wait",
        complexity="O(branches on its path) per request, and per request whose cached prefix changes",
        starves="requests with nothing in the cache, or with a prefix that few share",
        cache_aware=CacheAware.YES,
    )

    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        return _DfsWeightQueue(index)


class _WalkNode:
    """A place, as the walk sees it. All three lists are sorted, and no two entries tie: each age is one request's."""

    __slots__ = ("branch_ranks", "branches", "entry", "parent", "waiting")

    def __init__(self) -> None:
        self.branches: list[tuple[int, WalkRank, _WalkNode]] = []
        """By weight, the heaviest first, then age."""
        self.branch_ranks: list[WalkRank] = []
        """Of the branches."""
        self.waiting: list[tuple[WalkRank, WaitingRequest]] = []
        self.parent: _WalkNode | None = None
        """Of whose branches it is."""
        self.entry: tuple[int, WalkRank] = (0, (False, 0, 0))
        """Its entry there: weight, negative, and age of the first to arrive who stands here or beyond."""


class _DfsWeightQueue(CacheAwareQueue):
    def __init__(self, index: PrefixIndex) -> None:
        super().__init__(index)
        self._nodes: dict[PrefixNode, _WalkNode] = {index.tree.root: _WalkNode()}
        self._position_of: dict[WaitingRequest, tuple[_WalkNode, WalkRank]] = {}
        self._walk: Iterator[WaitingRequest] | None = None
        """The order of this pass; None: it has not begun, or somebody came or left meanwhile."""
        self._next: WaitingRequest | None = None
        self._admitted: list[WaitingRequest] = []
        """Admitted in this pass, and still in the tree."""

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

    def on_admitted(self, waiter: WaitingRequest) -> None:
        assert self._walk is not None
        self._admitted.append(waiter)
        self._next = next(self._walk, None)

    def _end_pass(self) -> None:
        self._walk = self._next = None
        for waiter in self._admitted:
            self._index.admit(waiter)
        self._admitted.clear()

    def _update_nodes(self) -> None:
        """Put what changed in the tree where it belongs, from the leaves to the root."""
        moved, reweighed = self._index.changed, self._index.tree.dirty
        for waiter in moved:
            self._update_waiting(waiter)
        moved.clear()
        changed = sorted((place for place in reweighed if place.parent is not None), key=lambda place: -place.start)
        reweighed.clear()
        for place in changed:
            self._detach(self._node(place))
        for place in changed:
            if place.weight:
                self._attach(place)
            else:
                del self._nodes[place]

    def _update_waiting(self, waiter: WaitingRequest) -> None:
        before = self._position_of.pop(waiter, None)
        if before is not None:
            node, age = before
            del node.waiting[bisect_left(node.waiting, (age,))]
        if waiter.node is not None:
            node, age = self._node(waiter.node), (waiter.deprioritized, *waiter.arrival_rank)
            self._position_of[waiter] = (node, age)
            insort(node.waiting, (age, waiter))

    def _detach(self, node: _WalkNode) -> None:
        """Its entry among its siblings is void."""
        if node.parent is not None:
            del node.parent.branches[bisect_left(node.parent.branches, node.entry)]
            del node.parent.branch_ranks[bisect_left(node.parent.branch_ranks, node.entry[1])]
            node.parent = None

    def _attach(self, place: PrefixNode) -> None:
        """Sort `place` in among its siblings; what is beyond it is sorted."""
        assert place.parent is not None
        node = self._node(place)
        age = min([age for age, _ in node.waiting[:1]] + node.branch_ranks[:1])
        node.parent, node.entry = self._node(place.parent), (-place.weight, age)
        insort(node.parent.branches, (*node.entry, node))
        insort(node.parent.branch_ranks, age)

    def _node(self, place: PrefixNode) -> _WalkNode:
        node = self._nodes.get(place)
        if node is None:
            node = self._nodes[place] = _WalkNode()
        return node


def _walk(root: _WalkNode) -> Iterator[WaitingRequest]:
    """The nodes on the way down, each with the next of its branches."""
    way = [(root, iter(root.branches))]
    while way:
        node, branches = way[-1]
        branch = next(branches, None)
        if branch is not None:
            way.append((branch[2], iter(branch[2].branches)))
        else:
            yield from (waiter for _, waiter in node.waiting)
            way.pop()
