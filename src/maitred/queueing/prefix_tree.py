"""Places: the cached prefixes of those who wait, as a tree.

A *place* is a stretch of cached blocks without a branch, where nobody stands but at its end. So there are few of them, however
long the prompts are: to move one who waits costs what its path has of places. It is opened by the first to stand there or
beyond, split where somebody stands or branches off within, joined with the next one when that is over, and closed by the last
to leave. It counts who stands there or beyond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from maitred.core.errors import InvariantError
from maitred.core.sequence import SequenceState


class WaitingRequest:
    """One who waits. `depth`: how many blocks of its `chain` are cached, without a gap."""

    __slots__ = ("_block_size", "arrival_rank", "block_hashes", "deprioritized", "depth", "node", "seq")

    def __init__(self, seq: SequenceState, block_hashes: Sequence[int], block_size: int) -> None:
        self.seq = seq
        self.block_hashes = block_hashes
        self._block_size = block_size
        self.depth = 0
        self.node: PrefixNode | None = None
        """None: it waits no more."""
        self.deprioritized = False
        """Another computes the beginning of its prompt, or is to do so first (see `duplicates`)."""
        self.arrival_rank = (seq.request.arrival, seq.arrival_index)

    @property
    def matched_tokens(self) -> int:
        """Tokens that it finds in the cache. At least one must be left to compute, or nothing could come out."""
        return min(self.cached_tokens, self.seq.num_tokens_to_prefill - 1)

    @property
    def uncached_tokens(self) -> int:
        """Tokens that it has to compute, at least 1. After a preemption: with those that it had emitted."""
        return self.seq.num_tokens_to_prefill - self.matched_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the cached blocks of its prompt."""
        return self.depth * self._block_size


class PrefixNode:
    """A stretch of cached blocks, `keys`, of which the first is the `start`-th (from 0) of its chain."""

    __slots__ = ("children", "keys", "parent", "start", "waiting", "weight")

    def __init__(self, parent: PrefixNode | None, start: int, keys: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.keys = keys
        self.children: dict[int, PrefixNode] = {}
        """By their first block."""
        self.waiting: dict[WaitingRequest, None] = {}
        self.weight = 0
        """Who stands here or beyond; 0: this place is no more."""

    @property
    def end(self) -> int:
        return self.start + len(self.keys)

    def attach(self, waiters: Iterable[WaitingRequest]) -> None:
        """They stand here now."""
        end = self.end
        for waiter in waiters:
            self.waiting[waiter] = None
            waiter.node, waiter.depth = self, end

    def subtree(self) -> Iterator[WaitingRequest]:
        """Who stands here or beyond. Do not move them meanwhile."""
        places = [self]
        while places:
            place = places.pop()
            yield from place.waiting
            places.extend(place.children.values())


class WaitingPrefixTree:
    """All places, and where each cached block of a waiting request is among them."""

    def __init__(self) -> None:
        self.root = PrefixNode(None, 0, [])
        self._node_of_block: dict[int, PrefixNode] = {}
        """The place of each block of a place."""
        self.dirty: dict[PrefixNode, None] = {}
        """The places where anything changed since the queue last cleared this, whether they are still there or not."""

    def __contains__(self, key: int) -> bool:
        """Whether anybody stands at this block or beyond."""
        return key in self._node_of_block

    def node_of(self, key: int) -> PrefixNode:
        """The place that this block is in. Raises KeyError if nobody stands there or beyond."""
        return self._node_of_block[key]

    def insert(self, waiter: WaitingRequest, depth: int) -> None:
        """`waiter` stands at the `depth`-th block of its chain, from now on."""
        place = self._node_at(self.root, waiter.block_hashes, depth)
        place.attach([waiter])
        self._add_weight(place, 1)

    def remove(self, waiter: WaitingRequest) -> None:
        """It stands nowhere."""
        place = waiter.node
        assert place is not None
        waiter.node = None
        del place.waiting[waiter]
        self._add_weight(place, -1)
        self._prune(place)

    def advance(self, waiters: Sequence[WaitingRequest], key: int) -> None:
        """`waiters`, who stand at the same place, move on to the same block, `key`."""
        start, chain = waiters[0].node, waiters[0].block_hashes
        assert start is not None
        for waiter in waiters:
            del start.waiting[waiter]
        depth = chain.index(key, start.end) + 1
        place = self._node_at(start, chain, depth)
        place.attach(waiters)
        self._add_weight(place, len(waiters), start)
        self._prune(start)

    def retreat(self, key: int) -> None:
        """All who stand at this block or beyond stand before it now."""
        place = self._node_of_block[key]
        waiters = list(place.subtree())
        kept = place.keys.index(key)
        self._discard(list(place.children.values()))
        place.children.clear()
        place.waiting.clear()
        if kept:
            for lost in place.keys[kept:]:
                del self._node_of_block[lost]
            del place.keys[kept:]
        else:
            assert place.parent is not None
            del place.parent.children[key]
            self._discard([place])
            place = place.parent
        place.attach(waiters)

    def mark_dirty(self, place: PrefixNode | None) -> None:
        """Something about those who stand at `place` is different."""
        self._add_weight(place, 0)

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(places)."""
        homes: dict[int, PrefixNode] = {}
        places = [self.root]
        while places:
            place = places.pop()
            children = place.children.values()
            if place.weight != len(place.waiting) + sum(child.weight for child in children):
                raise InvariantError(f"place {place.keys}: {place.weight} stand there or beyond, but the sum is another")
            if place is not self.root and (not place.weight or (len(children) == 1 and not place.waiting)):
                raise InvariantError(f"place {place.keys} is not needed")
            if any(child.parent is not place or child.start != place.end for child in children):
                raise InvariantError(f"place {place.keys}: what is beyond does not continue it")
            homes.update(dict.fromkeys(place.keys, place))
            places.extend(children)
        if homes != self._node_of_block:
            raise InvariantError("a block of a place is not known to be there, or one is that is not")

    def _discard(self, places: list[PrefixNode]) -> None:
        """Nobody stands in them or beyond any more."""
        while places:
            place = places.pop()
            places.extend(place.children.values())
            for key in place.keys:
                del self._node_of_block[key]
            place.weight = 0
            self.dirty[place] = None

    def _add_weight(self, place: PrefixNode | None, change: int, below: PrefixNode | None = None) -> None:
        """So many more stand at `place`, and came from `below`, if from anywhere."""
        while place is not below and place is not None:
            place.weight += change
            self.dirty[place] = None
            place = place.parent

    def _node_at(self, place: PrefixNode, chain: Sequence[int], depth: int) -> PrefixNode:
        """The place that ends with the `depth`-th block of `chain`, all cached; `place` is before it."""
        while place.end < depth:
            start = place.end
            child = place.children.get(chain[start])
            if child is None:
                return self._add_child(place, list(chain[start:depth]))
            end = min(child.end, depth)
            if chain[end - 1] != child.keys[end - start - 1]:
                end = start + _common_prefix_length(chain[start:end], child.keys)
            place = child if end == child.end else self._split(child, end)
        return place

    def _add_child(self, parent: PrefixNode, keys: list[int]) -> PrefixNode:
        place = parent.children[keys[0]] = PrefixNode(parent, parent.end, keys)
        self._node_of_block.update(dict.fromkeys(keys, place))
        return place

    def _split(self, lower: PrefixNode, end: int) -> PrefixNode:
        """Returns the upper part of it, which ends at `end`."""
        parent = lower.parent
        assert parent is not None
        count = end - lower.start
        upper = self._add_child(parent, lower.keys[:count])
        upper.weight = lower.weight
        upper.children[lower.keys[count]] = lower
        lower.parent, lower.start, lower.keys = upper, end, lower.keys[count:]
        self.dirty[lower] = None
        return upper

    def _prune(self, place: PrefixNode) -> None:
        """Nobody may stand in `place` or beyond any more, or nobody but beyond its only child."""
        while not place.weight and place.parent is not None:
            del place.parent.children[place.keys[0]]
            for key in place.keys:
                del self._node_of_block[key]
            place = place.parent
        if place.parent is not None and not place.waiting and len(place.children) == 1:
            self._merge_with_child(place)

    def _merge_with_child(self, upper: PrefixNode) -> None:
        """Its only child takes its place."""
        (lower,) = upper.children.values()
        parent = lower.parent = upper.parent
        assert parent is not None
        parent.children[upper.keys[0]] = lower
        self._node_of_block.update(dict.fromkeys(upper.keys, lower))
        lower.start, lower.keys = upper.start, upper.keys + lower.keys
        upper.weight = 0
        self.dirty[upper] = self.dirty[lower] = None


def _common_prefix_length(keys: Sequence[int], others: Sequence[int]) -> int:
    """How many leading keys are equal. Where one is, all before it are: the first that differs is found by halves."""
    return bisect_left(range(len(keys)), 1, key=lambda i: keys[i] != others[i])
