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

from maitred.contracts import StepView, WaitQueue
from maitred.queueing.cache_aware import CacheAwarePolicy, CacheAwareQueue
from maitred.queueing.places import Place, Waiter
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.prefix_index import PrefixIndex
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros

Age: TypeAlias = tuple[bool, int, int]
"""Whether it is held back, arrival, order: the smaller goes first."""


@SCHEDULERS.register("dfs-weight")
class DepthFirstByWeight(CacheAwarePolicy):
    """See the module (SGLang `dfs-weight`). Who is held back goes last among those on the same node."""

    about = PolicyInfo(
        line="depth first through the tree of cached prefixes, where most requests wait",
        complexity="O(branches on its path) per request, and per request whose cached prefix changes",
        starves="requests with nothing in the cache, or with a prefix that few share",
        cache_aware=CacheAware.YES,
    )

    def ordered(self, index: PrefixIndex) -> WaitQueue:
        return _TreeQueue(index)


class _Node:
    """A place, as the walk sees it. All three lists are sorted, and no two entries tie: each age is one request's."""

    __slots__ = ("above", "ages", "branches", "rank", "standing")

    def __init__(self) -> None:
        self.branches: list[tuple[int, Age, _Node]] = []
        """By weight, the heaviest first, then age."""
        self.ages: list[Age] = []
        """Of the branches."""
        self.standing: list[tuple[Age, Waiter]] = []
        self.above: _Node | None = None
        """Of whose branches it is."""
        self.rank: tuple[int, Age] = (0, (False, 0, 0))
        """Its entry there: weight, negative, and age of the first to arrive who stands here or beyond."""


class _TreeQueue(CacheAwareQueue):
    def __init__(self, index: PrefixIndex) -> None:
        super().__init__(index)
        self._nodes: dict[Place, _Node] = {index.places.root: _Node()}
        self._standing: dict[Waiter, tuple[_Node, Age]] = {}
        self._walk: Iterator[Waiter] | None = None
        """The order of this pass; None: it has not begun, or somebody came or left meanwhile."""
        self._next: Waiter | None = None
        self._taken: list[Waiter] = []
        """Admitted in this pass, and still in the tree."""

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._end_pass()
        super().add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> Seq | None:
        self._end_pass()
        return super().remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        self._end_pass()
        super().begin(step, now)

    def head(self) -> Waiter | None:
        if self._walk is None:
            self._sort()
            self._walk = _walk(self._nodes[self._index.places.root])
            self._next = next(self._walk, None)
        return self._next

    def admit(self, waiter: Waiter) -> None:
        assert self._walk is not None
        self._taken.append(waiter)
        self._next = next(self._walk, None)

    def _end_pass(self) -> None:
        self._walk = self._next = None
        for waiter in self._taken:
            self._index.admit(waiter)
        self._taken.clear()

    def _sort(self) -> None:
        """Put what changed in the tree where it belongs, from the leaves to the root."""
        moved, reweighed = self._index.moved, self._index.places.reweighed
        for waiter in moved:
            self._place(waiter)
        moved.clear()
        changed = sorted((place for place in reweighed if place.parent is not None), key=lambda place: -place.start)
        reweighed.clear()
        for place in changed:
            self._take_out(self._node(place))
        for place in changed:
            if place.weight:
                self._put_in(place)
            else:
                del self._nodes[place]

    def _place(self, waiter: Waiter) -> None:
        before = self._standing.pop(waiter, None)
        if before is not None:
            node, age = before
            del node.standing[bisect_left(node.standing, (age,))]
        if waiter.place is not None:
            node, age = self._node(waiter.place), (waiter.held_back, *waiter.tie)
            self._standing[waiter] = (node, age)
            insort(node.standing, (age, waiter))

    def _take_out(self, node: _Node) -> None:
        """Its entry among its siblings is void."""
        if node.above is not None:
            del node.above.branches[bisect_left(node.above.branches, node.rank)]
            del node.above.ages[bisect_left(node.above.ages, node.rank[1])]
            node.above = None

    def _put_in(self, place: Place) -> None:
        """Sort `place` in among its siblings; what is beyond it is sorted."""
        assert place.parent is not None
        node = self._node(place)
        age = min([age for age, _ in node.standing[:1]] + node.ages[:1])
        node.above, node.rank = self._node(place.parent), (-place.weight, age)
        insort(node.above.branches, (*node.rank, node))
        insort(node.above.ages, age)

    def _node(self, place: Place) -> _Node:
        node = self._nodes.get(place)
        if node is None:
            node = self._nodes[place] = _Node()
        return node


def _walk(root: _Node) -> Iterator[Waiter]:
    """The nodes on the way down, each with the next of its branches."""
    way = [(root, iter(root.branches))]
    while way:
        node, branches = way[-1]
        branch = next(branches, None)
        if branch is not None:
            way.append((branch[2], iter(branch[2].branches)))
        else:
            yield from (waiter for _, waiter in node.standing)
            way.pop()
