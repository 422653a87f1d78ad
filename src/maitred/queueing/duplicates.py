"""Of several waiting requests that begin alike, one computes the beginning, and the others wait for it.

Whoever shares his first `deprioritize` tokens (whole blocks) with another, and finds at most `check` tokens in the cache, is
in a group with it. The first to arrive leads; the others are held back, which puts them behind everybody who is not. When the
leader is admitted they go on waiting for it, until the beginning is published, which moves them out of the group, or the
leader is gone, which makes the next of them lead. (SGLang forgets the leader when it is admitted, and the next one computes
the same beside it while it prefills chunk by chunk.)

To be held back is an order, not a ban: where there is room for all, they are admitted together, and compute together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from maitred.queueing.places import Waiter
from maitred.request import RequestId


class _Group:
    __slots__ = ("computing", "leader", "members")

    def __init__(self) -> None:
        self.members: list[tuple[tuple[int, int], Waiter]] = []
        """Those who wait, in the order of their arrival."""
        self.leader: Waiter | None = None
        """The first of them, while nobody is `computing`; all others are held back."""
        self.computing: set[RequestId] = set()
        """Those who were admitted."""


class Duplicates:
    """The groups among the waiting requests of one instance."""

    def __init__(self, check: int, deprioritize: int, block_size: int, flipped: Callable[[Waiter], None]) -> None:
        """`flipped` is told who is held back, or no longer is. `check` -1: nobody ever is. Raises ValueError unless
        `deprioritize` is at least 1."""
        if deprioritize < 1:
            raise ValueError("deprioritize must be at least 1 token")
        self._check = check
        self._blocks = -(-deprioritize // block_size)
        self._flipped = flipped
        self._groups: dict[int, _Group] = {}
        """By the last block of what they share."""
        self._admitted: dict[RequestId, int] = {}
        """The group of each that is computing."""

    def __contains__(self, key: int) -> bool:
        """Whether somebody waits for this block to be computed by another, or computes it."""
        return key in self._groups

    def stands(self, waiter: Waiter) -> None:
        """It has come, or moved."""
        if len(waiter.chain) < self._blocks:
            return
        key = waiter.chain[self._blocks - 1]
        group = self._groups.get(key)
        entry = (waiter.tie, waiter)
        if waiter.cached > self._check:
            if group is not None:
                self._quit(group, key, waiter)
        elif group is None:
            group = self._groups[key] = _Group()
            group.members.append(entry)
            self._elect(group, key)
        elif not _member(group, waiter):
            insort(group.members, entry)
            self._hold(waiter, True)
            self._elect(group, key)

    def leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        if len(waiter.chain) >= self._blocks:
            key = waiter.chain[self._blocks - 1]
            group = self._groups.get(key)
            if group is not None:
                self._quit(group, key, waiter)

    def admit(self, waiter: Waiter) -> int | None:
        """It waits no more: its prompt is going to be computed. Returns the last block of what it computes for a group."""
        if len(waiter.chain) < self._blocks:
            return None
        key = waiter.chain[self._blocks - 1]
        group = self._groups.get(key)
        if group is None or not _member(group, waiter):
            return None
        group.computing.add(waiter.seq.request.id)
        self._admitted[waiter.seq.request.id] = key
        self._quit(group, key, waiter)
        return key

    def published(self, key: int) -> None:
        """What a group shares is computed."""
        group = self._groups.get(key)
        if group is not None:
            for request_id in list(group.computing):
                self.over(request_id)

    def over(self, request_id: RequestId) -> None:
        """One that was admitted will not compute what its group shares (any more)."""
        key = self._admitted.pop(request_id, None)
        if key is not None:
            group = self._groups[key]
            group.computing.remove(request_id)
            self._elect(group, key)

    def _quit(self, group: _Group, key: int, waiter: Waiter) -> None:
        if _member(group, waiter):
            del group.members[bisect_left(group.members, (waiter.tie,))]
            self._hold(waiter, False)
            self._elect(group, key)

    def _elect(self, group: _Group, key: int) -> None:
        """Somebody came, left, was admitted or is through: who leads now?"""
        if not group.members and not group.computing:
            del self._groups[key]
            return
        before = group.leader
        group.leader = group.members[0][1] if group.members and not group.computing else None
        if before is group.leader:
            return
        if before is not None and _member(group, before):
            self._hold(before, True)
        if group.leader is not None:
            self._hold(group.leader, False)

    def _hold(self, waiter: Waiter, back: bool) -> None:
        if waiter.held_back is not back:
            waiter.held_back = back
            self._flipped(waiter)


def _member(group: _Group, waiter: Waiter) -> bool:
    at = bisect_left(group.members, (waiter.tie,))
    return at < len(group.members) and group.members[at][1] is waiter
