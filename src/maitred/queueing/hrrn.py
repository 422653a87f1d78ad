"""hrrn: highest response ratio next.

    ratio = tokens of prompts prefilled here since it came / tokens of its own that the cache leaves to compute

So a short one goes soon, and a long one's turn comes: the clock is work done, not time (SGLang's). Here a preempted request
keeps its age; SGLang begins it anew.
"""

from __future__ import annotations

from maitred.contracts import StepView, WaitQueue
from maitred.queueing.cache_aware import CacheAwarePolicy, CacheAwareQueue
from maitred.queueing.heap import SeqHeap
from maitred.queueing.places import Waiter
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.tournament import Player, Tournament
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


@SCHEDULERS.register("hrrn")
class HighestResponseRatioNext(CacheAwarePolicy):
    """By ratio (see the module), largest first, then arrival, then order (SGLang `hrrn`, without its cut-off)."""

    about = PolicyInfo(
        line="by tokens prefilled since it came, per token that it has to compute itself after what is cached",
        complexity="O(log n) per request, and per request whose cached prefix changes; amortised O(log n) as the clock goes on",
        starves="nobody",
        cache_aware=CacheAware.YES,
    )

    def ordered(self, index: PrefixIndex) -> WaitQueue:
        return _RatioQueue(index)


class _RatioQueue(CacheAwareQueue):
    """A tournament of those who are not held back, and those who are behind it."""

    def __init__(self, index: PrefixIndex) -> None:
        super().__init__(index)
        self._clock = 0
        self._since: dict[RequestId, int] = {}
        """The clock when each request came; kept until it is gone."""
        self._tournament: Tournament[Waiter] = Tournament()
        self._players: dict[Waiter, Player[Waiter]] = {}
        self._held_back = SeqHeap()

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._since.setdefault(seq.request.id, self._clock)
        super().add(seq, now, front=front)

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        self._clock += prefill

    def left(self, seq: Seq, now: Micros) -> None:
        super().left(seq, now)
        self._since.pop(seq.request.id, None)

    def begin(self, step: StepView, now: Micros) -> None:
        super().begin(step, now)
        self._settle()
        self._tournament.advance(self._clock)

    def head(self) -> Waiter | None:
        self._settle()
        first = self._tournament.first()
        if first is not None:
            return first
        held_back = self._held_back.first()
        return None if held_back is None else self._waiters[held_back.request.id]

    def _settle(self) -> None:
        moved = self._index.moved
        for waiter in moved:
            self._place(waiter)
        moved.clear()
        self._index.places.reweighed.clear()

    def _place(self, waiter: Waiter) -> None:
        player = self._players.get(waiter)
        self._held_back.remove(waiter.seq.request.id)
        if waiter.place is not None and not waiter.held_back:
            self._play(waiter, player)
            return
        if player is not None:
            self._tournament.leave(player)
            del self._players[waiter]
        if waiter.place is not None:
            self._held_back.push(waiter.tie, waiter.seq)

    def _play(self, waiter: Waiter, player: Player[Waiter] | None) -> None:
        if player is None:
            since = self._since[waiter.seq.request.id]
            player = self._players[waiter] = Player(waiter, since, waiter.uncached, waiter.tie)
            self._tournament.enter(player)
        else:
            player.size = waiter.uncached
            self._tournament.changed(player)
