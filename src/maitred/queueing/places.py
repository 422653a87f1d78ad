"""Places: the cached prefixes of those who wait, as a tree.

A *place* is a stretch of cached blocks without a branch, where nobody stands but at its end. So there are few of them, however
long the prompts are: to move one who waits costs what its path has of places. It is opened by the first to stand there or
beyond, split where somebody stands or branches off within, joined with the next one when that is over, and closed by the last
to leave. It counts who stands there or beyond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from maitred.errors import InvariantError
from maitred.seq import Seq


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

    def take(self, waiters: Iterable[Waiter]) -> None:
        """They stand here now."""
        end = self.end
        for waiter in waiters:
            self.standing[waiter] = None
            waiter.place, waiter.depth = self, end

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

    def stand(self, waiter: Waiter, depth: int) -> None:
        """`waiter` stands at the `depth`-th block of its chain, from now on."""
        place = self._place(self.root, waiter.chain, depth)
        place.take([waiter])
        self._weigh(place, 1)

    def step_aside(self, waiter: Waiter) -> None:
        """It stands nowhere."""
        place = waiter.place
        assert place is not None
        waiter.place = None
        del place.standing[waiter]
        self._weigh(place, -1)
        self._tidy(place)

    def move_on(self, waiters: Sequence[Waiter], key: int) -> None:
        """`waiters`, who stand at the same place, move on to the same block, `key`."""
        start, chain = waiters[0].place, waiters[0].chain
        assert start is not None
        for waiter in waiters:
            del start.standing[waiter]
        depth = chain.index(key, start.end) + 1
        place = self._place(start, chain, depth)
        place.take(waiters)
        self._weigh(place, len(waiters), start)
        self._tidy(start)

    def fall_back(self, key: int) -> None:
        """All who stand at this block or beyond stand before it now."""
        place = self._homes[key]
        waiters = list(place.beyond())
        kept = place.keys.index(key)
        self._close(list(place.children.values()))
        place.children.clear()
        place.standing.clear()
        if kept:
            for lost in place.keys[kept:]:
                del self._homes[lost]
            del place.keys[kept:]
        else:
            assert place.parent is not None
            del place.parent.children[key]
            self._close([place])
            place = place.parent
        place.take(waiters)

    def mark(self, place: Place | None) -> None:
        """Something about those who stand at `place` is different."""
        self._weigh(place, 0)

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(places)."""
        homes: dict[int, Place] = {}
        places = [self.root]
        while places:
            place = places.pop()
            children = place.children.values()
            if place.weight != len(place.standing) + sum(child.weight for child in children):
                raise InvariantError(f"place {place.keys}: {place.weight} stand there or beyond, but the sum is another")
            if place is not self.root and (not place.weight or (len(children) == 1 and not place.standing)):
                raise InvariantError(f"place {place.keys} is not needed")
            if any(child.parent is not place or child.start != place.end for child in children):
                raise InvariantError(f"place {place.keys}: what is beyond does not continue it")
            homes.update(dict.fromkeys(place.keys, place))
            places.extend(children)
        if homes != self._homes:
            raise InvariantError("a block of a place is not known to be there, or one is that is not")

    def _close(self, places: list[Place]) -> None:
        """Nobody stands in them or beyond any more."""
        while places:
            place = places.pop()
            places.extend(place.children.values())
            for key in place.keys:
                del self._homes[key]
            place.weight = 0
            self.reweighed[place] = None

    def _weigh(self, place: Place | None, change: int, below: Place | None = None) -> None:
        """So many more stand at `place`, and came from `below`, if from anywhere."""
        while place is not below and place is not None:
            place.weight += change
            self.reweighed[place] = None
            place = place.parent

    def _place(self, place: Place, chain: Sequence[int], depth: int) -> Place:
        """The place that ends with the `depth`-th block of `chain`, all cached; `place` is before it."""
        while place.end < depth:
            start = place.end
            child = place.children.get(chain[start])
            if child is None:
                return self._open(place, list(chain[start:depth]))
            end = min(child.end, depth)
            if chain[end - 1] != child.keys[end - start - 1]:
                end = start + _common(chain[start:end], child.keys)
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
        self.reweighed[upper] = self.reweighed[lower] = None


def _common(keys: Sequence[int], others: Sequence[int]) -> int:
    """How many leading keys are equal. Where one is, all before it are: the first that differs is found by halves."""
    return bisect_left(range(len(keys)), 1, key=lambda i: keys[i] != others[i])
