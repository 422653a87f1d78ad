"""How much of each waiting request's prompt is cached, kept up to date as blocks come and go.

A waiting request is filed in two places: in the tree (`WaitingPrefixTree`) at the last block of its cached prefix, and in
`_waiting_for_block` under the block that comes next in its prompt:

    prompt    A  B  C | D  E            A, B and C are cached, so the request is at C and waits for D
    cached    A  B  C      E            (that E is cached is of no use before D is)

When D is stored, the requests that wait for D advance, as far as the cache goes: here past E, to the end. When B is removed,
the requests at B or below retreat to A. No other request is looked at, so a pass costs what has changed and not what waits.

The listener's callbacks only note which blocks changed. `apply_updates`, at the start of a pass, asks the cache how they are by
then. Looking never changes the cache.

`InBatchDedup`: of several waiting requests that begin alike, one computes the beginning and the others wait for it. Requests
that share their first `deprioritize` tokens (whole blocks), and find at most `check` tokens in the cache, are a group. The
first to arrive leads; the others are *deprioritized*, which puts them behind all that are not. When the leader is admitted they
go on waiting, until the beginning is stored (they then find more than `check` tokens and leave the group) or the leader is gone
(the next one leads). Deprioritized is an order, not a ban: where there is room for all, all are admitted and compute together.

For example, with blocks of 16 tokens and `check = deprioritize = 32`: prompts ABCD, ABCE and ABXY (a letter is a block) arrive
in this order and nothing is cached. They share AB, so ABCD leads and the others are deprioritized. ABCD is admitted; when the
block B is stored, both others find 32 tokens, still not more than `check`; but the group has nothing left to compute, so ABCE
leads now and is deprioritized no more. With C stored too, it finds 48 tokens and leaves the group; ABXY leads then.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence

from maitred.core.contracts import PrefixCacheView
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.kv.block_hashes import sequence_block_hashes
from maitred.queueing.prefix_tree import PrefixNode, WaitingPrefixTree, WaitingRequest


class _DedupGroup:
    __slots__ = ("computing", "leader", "members")

    def __init__(self) -> None:
        self.members: list[tuple[tuple[int, int], WaitingRequest]] = []
        """The waiting requests, in order of arrival."""
        self.leader: WaitingRequest | None = None
        """The first member, while nothing is `computing`; all other members are deprioritized."""
        self.computing: set[RequestId] = set()
        """The requests that were admitted and compute the beginning."""


class InBatchDedup:
    """The groups of waiting requests that begin alike, in one instance."""

    def __init__(self, check: int, deprioritize: int, block_size: int, on_change: Callable[[WaitingRequest], None]) -> None:
        """`on_change` is called with each request that becomes deprioritized, or no longer is. With `check` -1 none ever is.
        Raises ValueError unless `deprioritize` is at least 1."""
        if deprioritize < 1:
            raise ValueError("deprioritize must be at least 1 token")
        self._checked_blocks = check // block_size
        """A request with more cached blocks than this is in no group."""
        self._blocks = -(-deprioritize // block_size)
        self._on_change = on_change
        self.groups: dict[int, _DedupGroup] = {}
        """The groups by the last block of what they share. Others only look things up in it."""
        self._admitted: dict[RequestId, int] = {}
        """The group of each request that is computing."""

    def update(self, requests: Sequence[WaitingRequest]) -> None:
        """Note that `requests`, which wait at one node of the tree, came, or that another part of their prompts is cached."""
        depth, groups = requests[0].depth, self.groups
        is_found = depth > self._checked_blocks
        # They share the first `depth` blocks. So mostly one look says that none is in a group or joins one.
        if is_found and (not groups or (depth >= self._blocks and requests[0].block_hashes[self._blocks - 1] not in groups)):
            return
        for request in requests:
            if len(request.block_hashes) >= self._blocks:
                key = request.block_hashes[self._blocks - 1]
                if not is_found:
                    self._join_group(key, request)
                elif key in groups:
                    self._leave_group(groups[key], key, request)

    def remove(self, request: WaitingRequest) -> None:
        """Note that `request` waits no more, and computes nothing."""
        if len(request.block_hashes) >= self._blocks:
            key = request.block_hashes[self._blocks - 1]
            group = self.groups.get(key)
            if group is not None:
                self._leave_group(group, key, request)

    def admit(self, request: WaitingRequest) -> int | None:
        """Note that `request` waits no more and computes its prompt. Returns the last block of what it computes for a group."""
        if len(request.block_hashes) < self._blocks:
            return None
        key = request.block_hashes[self._blocks - 1]
        group = self.groups.get(key)
        if group is None or not _is_member(group, request):
            return None
        # Still known while it computes. SGLang forgets the leader when it is admitted, so the next one computes the same beside
        # it while it prefills chunk by chunk.
        group.computing.add(request.seq.request.id)
        self._admitted[request.seq.request.id] = key
        self._leave_group(group, key, request)
        return key

    def on_beginning_stored(self, key: int) -> None:
        """Note that the block `key`, and so the beginning of its group, is computed."""
        group = self.groups.get(key)
        if group is not None:
            for request_id in list(group.computing):
                self.on_request_end(request_id)

    def on_request_end(self, request_id: RequestId) -> None:
        """Note that an admitted request will not compute the beginning of its group (any more)."""
        key = self._admitted.pop(request_id, None)
        if key is not None:
            group = self.groups[key]
            group.computing.remove(request_id)
            self._elect_leader(group, key)

    def _join_group(self, key: int, request: WaitingRequest) -> None:
        group, entry = self.groups.get(key), (request.arrival_rank, request)
        if group is None:
            group = self.groups[key] = _DedupGroup()
            group.members.append(entry)
            self._elect_leader(group, key)
        elif not _is_member(group, request):
            # All members but the leader are deprioritized, so a request that joins starts that way. If it arrived
            # before the leader, as a preempted one may have, an election corrects it.
            insort(group.members, entry)
            self._set_deprioritized(request, True)
            if group.members[0][1] is request:
                self._elect_leader(group, key)

    def _leave_group(self, group: _DedupGroup, key: int, request: WaitingRequest) -> None:
        if _is_member(group, request):
            del group.members[bisect_left(group.members, (request.arrival_rank,))]
            self._set_deprioritized(request, False)
            self._elect_leader(group, key)

    def _elect_leader(self, group: _DedupGroup, key: int) -> None:
        """Find out which member leads, after a member came or left or a computing request ended. Drops an empty group."""
        if not group.members and not group.computing:
            del self.groups[key]
            return
        before = group.leader
        # Nothing leads while the beginning is being computed: a second leader would compute it once more.
        group.leader = group.members[0][1] if group.members and not group.computing else None
        if before is group.leader:
            return
        if before is not None and _is_member(group, before):
            self._set_deprioritized(before, True)
        if group.leader is not None:
            self._set_deprioritized(group.leader, False)

    def _set_deprioritized(self, request: WaitingRequest, deprioritized: bool) -> None:
        if request.deprioritized is not deprioritized:
            request.deprioritized = deprioritized
            self._on_change(request)


def _is_member(group: _DedupGroup, request: WaitingRequest) -> bool:
    at = bisect_left(group.members, (request.arrival_rank,))
    return at < len(group.members) and group.members[at][1] is request


class PrefixIndex:
    """The waiting requests of one instance by their cached prefix. It is a `PrefixCacheListener`."""

    def __init__(self, cache: PrefixCacheView, check: int, deprioritize: int) -> None:
        """`check` and `deprioritize` are those of `InBatchDedup`, in tokens. Raises ValueError unless `deprioritize` is at
        least 1."""
        self._cache = cache
        self._block_size = cache.block_size
        self.tree = WaitingPrefixTree()
        self._waiting_for_block: dict[int, dict[WaitingRequest, None]] = {}
        """The requests by the block that comes next in their prompt."""
        self._dedup = InBatchDedup(check, deprioritize, self._block_size, self._on_deprioritized)
        # A step stores and evicts hundreds of blocks, so the callbacks look into the dicts themselves.
        self._node_of_block = self.tree.node_of_block
        self._groups = self._dedup.groups
        self._changed_blocks: dict[int, None] = {}
        """The blocks that concern some request and came or went since the last `apply_updates`."""
        self._ended: list[RequestId] = []
        """The requests that ended since."""
        self.changed: dict[WaitingRequest, None] = {}
        """The requests that came, moved, left, or changed `deprioritized`, since the queue last cleared this."""
        cache.subscribe(self)

    def add(self, seq: SequenceState) -> WaitingRequest:
        """File `seq`, which waits from now on."""
        request = WaitingRequest(seq, sequence_block_hashes(seq, self._cache), self._block_size)
        self._dedup.on_request_end(seq.request.id)  # after a preemption it computes nothing for its group any more
        self.tree.insert(request, self._cache.num_cached_blocks(request.block_hashes))
        self._register([request])
        return request

    def remove(self, request: WaitingRequest) -> None:
        """Forget `request`, which waits no more."""
        # An aborted leader must not hold its group back: the next member leads at once.
        self._dedup.remove(request)
        self._remove_from_tree(request)

    def admit(self, request: WaitingRequest) -> None:
        """Forget `request`, which waits no more because its prompt is going to be computed."""
        shared = self._dedup.admit(request)
        if shared is not None:
            self._changed_blocks[shared] = None  # the block may be cached already, and then no event would end the wait
        self._remove_from_tree(request)

    def on_request_end(self, request_id: RequestId) -> None:
        """Note that the request will compute nothing (any more)."""
        self._ended.append(request_id)

    def on_stored(self, block_hash: int) -> None:
        # Noted, and not done: in the middle of a pass nothing moves, though admitting one request evicts what another would
        # have found.
        if block_hash in self._waiting_for_block or block_hash in self._node_of_block or block_hash in self._groups:
            self._changed_blocks[block_hash] = None

    def on_removed(self, block_hash: int) -> None:
        if block_hash in self._waiting_for_block or block_hash in self._node_of_block:
            self._changed_blocks[block_hash] = None

    def apply_updates(self) -> None:
        """Move the requests that the noted changes concern. Call it at the start of a pass."""
        self._cache.apply_evictions()  # a cache may evict lazily, and blocks that are due to go must not count
        ended, self._ended = self._ended, []
        for request_id in ended:
            self._dedup.on_request_end(request_id)
        if not self._changed_blocks:
            return
        blocks, self._changed_blocks = self._changed_blocks, {}
        lost = []
        for key in blocks:
            if not self._cache.contains(key):
                lost.append(key)
                continue
            self._dedup.on_beginning_stored(key)
            if key in self._waiting_for_block:
                self._advance_waiting(key)
        self._retreat_from(lost)

    def _retreat_from(self, keys: Iterable[int]) -> None:
        """Move up all requests that wait at one of these blocks or below: none of them is cached any more."""
        lost: dict[PrefixNode, set[int]] = {}
        for key in keys:
            if key in self._node_of_block:
                lost.setdefault(self._node_of_block[key], set()).add(key)
        # From the root downwards: one retreat moves all that is below, so what lies deeper costs nothing more.
        for node in sorted(lost, key=lambda node: node.start):
            if node.weight:  # otherwise a retreat further up has removed it already
                self._retreat(next(key for key in node.keys if key in lost[node]))  # the first gap makes the rest useless

    def _advance_waiting(self, key: int) -> None:
        """Move the requests that wait for the block `key`, which is cached now, as far as the cache goes.

        Requests that come one after the other here have mostly the same way. So the way of the one before is tried first: if
        its last cached block is in this prompt at the same place, all blocks up to it are cached here as well.
        """
        alike: dict[int, list[WaitingRequest]] = {}  # the requests by the last block of their new cached prefix
        end, depth = key, 0
        for request in self._waiting_for_block.pop(key):
            block_hashes = request.block_hashes
            is_known = 0 < depth <= len(block_hashes) and block_hashes[depth - 1] == end
            depth = self._cached_depth(block_hashes, depth if is_known else request.depth + 1)
            end = block_hashes[depth - 1]
            alike.setdefault(end, []).append(request)
        for end, requests in alike.items():
            self.tree.advance(requests, end)
            self._register(requests)

    def _retreat(self, key: int) -> None:
        """Move the requests that wait at the block `key` or below up to the block before it."""
        requests = self._node_of_block[key].subtree()
        self._unregister(requests)
        self.tree.retreat(key)
        # All of them wait for `key` now, so they are filed at once and not with `_register`.
        moved = dict.fromkeys(requests)
        self._waiting_for_block.setdefault(key, {}).update(moved)
        self.changed.update(moved)
        self._dedup.update(requests)

    def _cached_depth(self, block_hashes: Sequence[int], depth: int) -> int:
        """Return how many leading blocks are cached without a gap, given that the first `depth` are."""
        contains, end = self._cache.contains, len(block_hashes)
        while depth < end and contains(block_hashes[depth]):
            depth += 1
        return depth

    def _register(self, requests: Sequence[WaitingRequest]) -> None:
        """File `requests`, which have come to one node of the tree, under the block that each waits for."""
        waiting = self._waiting_for_block
        for request in requests:
            if request.depth < len(request.block_hashes):
                key = request.block_hashes[request.depth]
                same_block = waiting.get(key)
                if same_block is None:
                    waiting[key] = {request: None}
                else:
                    same_block[request] = None
            self.changed[request] = None
        self._dedup.update(requests)

    def _unregister(self, requests: Iterable[WaitingRequest]) -> None:
        """Undo `_register`, before `requests` move in the tree or leave it."""
        waiting = self._waiting_for_block
        for request in requests:
            if request.depth < len(request.block_hashes):
                key = request.block_hashes[request.depth]
                same_block = waiting[key]
                if len(same_block) == 1:
                    del waiting[key]
                else:
                    del same_block[request]

    def _remove_from_tree(self, request: WaitingRequest) -> None:
        self._unregister([request])
        self.tree.remove(request)
        self.changed[request] = None

    def _on_deprioritized(self, request: WaitingRequest) -> None:
        self.changed[request] = None
        self.tree.mark_dirty(request.node)
