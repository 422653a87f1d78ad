"""Of several waiting requests that begin alike, one computes the beginning, and the others wait for it.

Whoever shares his first `deprioritize` tokens (whole blocks) with another, and finds at most `check` tokens in the cache, is
in a group with it. The first to arrive leads; the others are held back, which puts them behind everybody who is not. When the
leader is admitted they go on waiting for it, until the beginning is published, which moves them out of the group, or the
leader is gone, which makes the next of them lead. (SGLang forgets the leader when it is admitted, and the next one computes
the same beside it while it prefills chunk by chunk.)

To be held back is an order, not a ban: where there is room for all, they are admitted together, and compute together.

Where each waiting request stands in the prefix cache, kept up to date as blocks come and go.

A waiting request is filed at the last block of its cached prefix and under the block it wants next:

    chain     A  B  C | D  E            A, B and C are cached, so it stands at C and wants D
    cached    A  B  C      E            (that E is there as well, is of no use before D is)

If D is published, those who want D move on, as far as the cache goes. If B is evicted, those who stand at B or beyond move
back to A. Nobody else is looked at.

News is only noted when it comes and believed at the next `apply_updates`, which asks the cache how things are by then: in the
middle
of a pass, when admitting one evicts what another would have found, nobody moves. Looking never changes the cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence

from maitred.core.contracts import PrefixCacheView
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.kv import sequence_block_hashes
from maitred.queueing.prefix_tree import PrefixNode, WaitingPrefixTree, WaitingRequest


class _DedupGroup:
    __slots__ = ("computing", "leader", "members")

    def __init__(self) -> None:
        self.members: list[tuple[tuple[int, int], WaitingRequest]] = []
        """Those who wait, in the order of their arrival."""
        self.leader: WaitingRequest | None = None
        """The first of them, while nobody is `computing`; all others are held back."""
        self.computing: set[RequestId] = set()
        """Those who were admitted."""


class InBatchDedup:
    """The groups among the waiting requests of one instance."""

    def __init__(self, check: int, deprioritize: int, block_size: int, on_change: Callable[[WaitingRequest], None]) -> None:
        """`flipped` is told who is held back, or no longer is. `check` -1: nobody ever is. Raises ValueError unless
        `deprioritize` is at least 1."""
        if deprioritize < 1:
            raise ValueError("deprioritize must be at least 1 token")
        self._check = check
        self._blocks = -(-deprioritize // block_size)
        self._on_change = on_change
        self._groups: dict[int, _DedupGroup] = {}
        """By the last block of what they share."""
        self._admitted: dict[RequestId, int] = {}
        """The group of each that is computing."""

    def __contains__(self, key: int) -> bool:
        """Whether somebody waits for this block to be computed by another, or computes it."""
        return key in self._groups

    def update(self, waiter: WaitingRequest) -> None:
        """It has come, or moved."""
        if len(waiter.block_hashes) < self._blocks:
            return
        key = waiter.block_hashes[self._blocks - 1]
        group = self._groups.get(key)
        entry = (waiter.arrival_rank, waiter)
        if waiter.cached_tokens > self._check:
            if group is not None:
                self._leave_group(group, key, waiter)
        elif group is None:
            group = self._groups[key] = _DedupGroup()
            group.members.append(entry)
            self._elect_leader(group, key)
        elif not _is_member(group, waiter):
            insort(group.members, entry)
            self._set_deprioritized(waiter, True)
            self._elect_leader(group, key)

    def remove(self, waiter: WaitingRequest) -> None:
        """It waits no more."""
        if len(waiter.block_hashes) >= self._blocks:
            key = waiter.block_hashes[self._blocks - 1]
            group = self._groups.get(key)
            if group is not None:
                self._leave_group(group, key, waiter)

    def admit(self, waiter: WaitingRequest) -> int | None:
        """It waits no more: its prompt is going to be computed. Returns the last block of what it computes for a group."""
        if len(waiter.block_hashes) < self._blocks:
            return None
        key = waiter.block_hashes[self._blocks - 1]
        group = self._groups.get(key)
        if group is None or not _is_member(group, waiter):
            return None
        group.computing.add(waiter.seq.request.id)
        self._admitted[waiter.seq.request.id] = key
        self._leave_group(group, key, waiter)
        return key

    def on_beginning_stored(self, key: int) -> None:
        """What a group shares is computed."""
        group = self._groups.get(key)
        if group is not None:
            for request_id in list(group.computing):
                self.on_request_end(request_id)

    def on_request_end(self, request_id: RequestId) -> None:
        """One that was admitted will not compute what its group shares (any more)."""
        key = self._admitted.pop(request_id, None)
        if key is not None:
            group = self._groups[key]
            group.computing.remove(request_id)
            self._elect_leader(group, key)

    def _leave_group(self, group: _DedupGroup, key: int, waiter: WaitingRequest) -> None:
        if _is_member(group, waiter):
            del group.members[bisect_left(group.members, (waiter.arrival_rank,))]
            self._set_deprioritized(waiter, False)
            self._elect_leader(group, key)

    def _elect_leader(self, group: _DedupGroup, key: int) -> None:
        """Somebody came, left, was admitted or is through: who leads now?"""
        if not group.members and not group.computing:
            del self._groups[key]
            return
        before = group.leader
        group.leader = group.members[0][1] if group.members and not group.computing else None
        if before is group.leader:
            return
        if before is not None and _is_member(group, before):
            self._set_deprioritized(before, True)
        if group.leader is not None:
            self._set_deprioritized(group.leader, False)

    def _set_deprioritized(self, waiter: WaitingRequest, back: bool) -> None:
        if waiter.deprioritized is not back:
            waiter.deprioritized = back
            self._on_change(waiter)


def _is_member(group: _DedupGroup, waiter: WaitingRequest) -> bool:
    at = bisect_left(group.members, (waiter.arrival_rank,))
    return at < len(group.members) and group.members[at][1] is waiter


class PrefixIndex:
    """The waiting requests of one instance, and where they stand: a `PrefixCacheListener`."""

    def __init__(self, cache: PrefixCacheView, check: int, deprioritize: int) -> None:
        """`check` and `deprioritize`: see `InBatchDedup`, in tokens. Raises ValueError unless `deprioritize` is at least 1."""
        self._cache = cache
        self._block_size = cache.block_size
        self.tree = WaitingPrefixTree()
        self._waiting_for_block: dict[int, dict[WaitingRequest, None]] = {}
        """Who wants this block next."""
        self._dedup = InBatchDedup(check, deprioritize, self._block_size, self._on_deprioritized)
        self._changed_blocks: dict[int, None] = {}
        self._ended: list[RequestId] = []
        self.changed: dict[WaitingRequest, None] = {}
        """Who came, moved, was held back or let go, or left, since the queue last cleared this."""
        cache.subscribe(self)

    def add(self, seq: SequenceState) -> WaitingRequest:
        """It waits from now on."""
        waiter = WaitingRequest(seq, sequence_block_hashes(seq, self._cache), self._block_size)
        self._dedup.on_request_end(seq.request.id)
        self.tree.insert(waiter, self._cache.num_cached_blocks(waiter.block_hashes))
        self._register([waiter])
        return waiter

    def remove(self, waiter: WaitingRequest) -> None:
        """It waits no more."""
        self._dedup.remove(waiter)
        self._remove_from_tree(waiter)

    def admit(self, waiter: WaitingRequest) -> None:
        """It waits no more: its prompt is going to be computed."""
        shared = self._dedup.admit(waiter)
        if shared is not None:
            self._changed_blocks[shared] = None  # it may be cached already
        self._remove_from_tree(waiter)

    def on_request_end(self, request_id: RequestId) -> None:
        """It will compute nothing (any more)."""
        self._ended.append(request_id)

    def on_stored(self, key: int) -> None:
        if key in self._waiting_for_block or key in self.tree or key in self._dedup:
            self._changed_blocks[key] = None

    def on_removed(self, key: int) -> None:
        if key in self._waiting_for_block or key in self.tree:
            self._changed_blocks[key] = None

    def apply_updates(self) -> None:
        """Move those whom the news since the last time concerns."""
        self._cache.contains(0)  # a cache may evict lazily, and tells when somebody looks
        gone, self._ended = self._ended, []
        for request_id in gone:
            self._dedup.on_request_end(request_id)
        if not self._changed_blocks:
            return
        news, self._changed_blocks = self._changed_blocks, {}
        lost = []
        for key in news:
            if not self._cache.contains(key):
                lost.append(key)
                continue
            self._dedup.on_beginning_stored(key)
            if key in self._waiting_for_block:
                self._advance_waiting(key)
        self._retreat_from(lost)

    def _retreat_from(self, keys: Iterable[int]) -> None:
        """These are not cached any more."""
        lost: dict[PrefixNode, set[int]] = {}
        for key in keys:
            if key in self.tree:
                lost.setdefault(self.tree.node_of(key), set()).add(key)
        for place in sorted(lost, key=lambda place: place.start):
            if place.weight:  # else those who stood there have fallen back further already
                self._retreat(next(key for key in place.keys if key in lost[place]))

    def _advance_waiting(self, key: int) -> None:
        """`key` is cached now. Those who want it move on, and have mostly the same way to go."""
        alike: dict[int, list[WaitingRequest]] = {}  # by the last block that they find
        end, depth = key, 0
        for waiter in self._waiting_for_block.pop(key):
            chain = waiter.block_hashes
            known = 0 < depth <= len(chain) and chain[depth - 1] == end
            depth = self._cached_depth(chain, depth if known else waiter.depth + 1)
            end = chain[depth - 1]
            alike.setdefault(end, []).append(waiter)
        for end, waiters in alike.items():
            self.tree.advance(waiters, end)
            self._register(waiters)

    def _retreat(self, key: int) -> None:
        """`key` is not cached any more. Those who stand there or beyond fall back to the block before it."""
        waiters = list(self.tree.node_of(key).subtree())
        for waiter in waiters:
            self._unregister(waiter)
        self.tree.retreat(key)
        self._register(waiters)

    def _cached_depth(self, chain: Sequence[int], depth: int) -> int:
        """How many blocks of `chain` are cached without a gap, if `depth` are."""
        holds, end = self._cache.contains, len(chain)
        while depth < end and holds(chain[depth]):
            depth += 1
        return depth

    def _register(self, waiters: Iterable[WaitingRequest]) -> None:
        """They stand where they have not stood before."""
        wanted, moved = self._waiting_for_block, self.changed
        for waiter in waiters:
            if waiter.depth < len(waiter.block_hashes):
                wanted.setdefault(waiter.block_hashes[waiter.depth], {})[waiter] = None
            moved[waiter] = None
            self._dedup.update(waiter)

    def _unregister(self, waiter: WaitingRequest) -> None:
        """It wants nothing."""
        if waiter.depth < len(waiter.block_hashes):
            key = waiter.block_hashes[waiter.depth]
            wanting = self._waiting_for_block[key]
            del wanting[waiter]
            if not wanting:
                del self._waiting_for_block[key]

    def _remove_from_tree(self, waiter: WaitingRequest) -> None:
        self._unregister(waiter)
        self.tree.remove(waiter)
        self.changed[waiter] = None

    def _on_deprioritized(self, waiter: WaitingRequest) -> None:
        self.changed[waiter] = None
        self.tree.mark_dirty(waiter.node)
