"""Places: the cached prefixes of those who wait, as a tree.

A *place* is a stretch of cached blocks without a branch, where nobody stands but at its end. So there are few of them, however
long the prompts are: to move one who waits costs what its path has of places. It is opened by the first to stand there or
beyond, split where somebody stands or branches off within, joined with the next one when that is over, and closed by the last
to leave. It counts who stands there or beyond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from maitred.contracts import Seq


class Waiter:
    """One who waits. `depth`: how many blocks of its `chain` are cached, without a gap."""

    __slots__ = ("_block_size", "chain", "depth", "held_back", "place", "seq", "tie")

    def __init__(self, seq: Seq, chain: Sequence[int], block_size: int) -> None:
        self.seq = seq
        self.chain = chain
        self._block_size = block_size
        self.depth = 0
        self.place: Place | None = None
        """None: it waits no more."""
        self.held_back = False
        """Another computes the beginning of its prompt, or is to do so first (see `duplicates`)."""
        self.tie = (seq.request.arrival, seq.order)

    @property
    def matched(self) -> int:
        """Tokens that it finds in the cache. At least one must be left to compute, or nothing could come out."""
        return min(self.cached, self.seq.target - 1)

    @property
    def uncached(self) -> int:
        """Tokens that it has to compute, at least 1. After a preemption: with those that it had emitted."""
        return self.seq.target - self.matched

    @property
    def cached(self) -> int:
        """Tokens of the cached blocks of its prompt."""
        return self.depth * self._block_size


class Place:
    """A stretch of cached blocks, `keys`, of which the first is the `start`-th (from 0) of its chain."""

    __slots__ = ("children", "keys", "parent", "standing", "start", "weight")

    def __init__(self, parent: Place | None, start: int, keys: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.keys = keys
        self.children: dict[int, Place] = {}
        """By their first block."""
        self.standing: dict[Waiter, None] = {}
        self.weight = 0
        """Who stands here or beyond; 0: this place is no more."""

    @property
    def end(self) -> int:
        return self.start + len(self.keys)

    def beyond(self) -> Iterator[Waiter]:
        """Who stands here or beyond. Do not move them meanwhile."""
        places = [self]
        while places:
            place = places.pop()
            yield from place.standing
            places.extend(place.children.values())


class PlaceTree:
    """All places, and where each cached block of a waiting request is among them."""

    def __init__(self) -> None:
        self.root = Place(None, 0, [])
        self._homes: dict[int, Place] = {}
        """The place of each block of a place."""
        self.reweighed: dict[Place, None] = {}
        """The places where anything changed since the queue last cleared this, whether they are still there or not."""

    def __contains__(self, key: int) -> bool:
        """Whether anybody stands at this block or beyond."""
        return key in self._homes

    def home(self, key: int) -> Place:
        """The place that this block is in. Raises KeyError if nobody stands there or beyond."""
        return self._homes[key]

    def depth(self, key: int) -> int:
        """How many blocks come before this one. Raises KeyError if nobody stands there or beyond."""
        place = self._homes[key]
        return place.start + place.keys.index(key)

    def stand(self, waiter: Waiter, depth: int) -> None:
        """`waiter` stands at the `depth`-th block of its chain, from now on."""
        waiter.depth = depth
        place = waiter.place = self._place(waiter.chain, depth)
        place.standing[waiter] = None
        self.weigh(place, 1)

    def step_aside(self, waiter: Waiter) -> None:
        """It stands nowhere."""
        place = waiter.place
        assert place is not None
        waiter.place = None
        del place.standing[waiter]
        self.weigh(place, -1)
        self._tidy(place)

    def weigh(self, place: Place | None, change: int) -> None:
        """So many more stand at `place`."""
        while place is not None:
            place.weight += change
            self.reweighed[place] = None
            place = place.parent

    def _place(self, chain: Sequence[int], depth: int) -> Place:
        """The place that ends with the `depth`-th block of `chain`, all cached."""
        place = self.root
        while place.end < depth:
            start = place.end
            child = place.children.get(chain[start])
            if child is None:
                return self._open(place, list(chain[start:depth]))
            end = min(child.end, depth)
            if (
                chain[end - 1] != child.keys[end - start - 1]
            ):  # equal keys mean equal prefixes: the first that differs is found by halves
                end = start + bisect_left(range(end - start), 1, key=lambda i: chain[start + i] != child.keys[i])
            place = child if end == child.end else self._split(child, end)
        return place

    def _open(self, parent: Place, keys: list[int]) -> Place:
        place = parent.children[keys[0]] = Place(parent, parent.end, keys)
        self._homes.update(dict.fromkeys(keys, place))
        return place

    def _split(self, lower: Place, end: int) -> Place:
        """Returns the upper part of it, which ends at `end`."""
        parent = lower.parent
        assert parent is not None
        count = end - lower.start
        upper = self._open(parent, lower.keys[:count])
        upper.weight = lower.weight
        upper.children[lower.keys[count]] = lower
        lower.parent, lower.start, lower.keys = upper, end, lower.keys[count:]
        self.reweighed[lower] = None
        return upper

    def _tidy(self, place: Place) -> None:
        """Nobody may stand in `place` or beyond any more, or nobody but beyond its only child."""
        while not place.weight and place.parent is not None:
            del place.parent.children[place.keys[0]]
            for key in place.keys:
                del self._homes[key]
            place = place.parent
        if place.parent is not None and not place.standing and len(place.children) == 1:
            self._join(place)

    def _join(self, upper: Place) -> None:
        """Its only child takes its place."""
        (lower,) = upper.children.values()
        parent = lower.parent = upper.parent
        assert parent is not None
        parent.children[upper.keys[0]] = lower
        self._homes.update(dict.fromkeys(upper.keys, lower))
        lower.start, lower.keys = upper.start, upper.keys + lower.keys
        upper.weight = 0
        self.reweighed[lower] = None
