"""hrrn: highest response ratio next.

    ratio = tokens of prompts prefilled here since it came / tokens of its own that the cache leaves to compute

So a short one goes soon, and a long one's turn comes: the clock is work done, not time (SGLang's). Here a preempted request
keeps its age; SGLang begins it anew.
"""

from __future__ import annotations

from maitred.core.contracts import StepView, WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.heap import SeqHeap
from maitred.queueing.kinetic_tournament import KineticTournament, Player
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.prefix_orders import CacheAwarePolicy, CacheAwareQueue
from maitred.queueing.prefix_tree import WaitingRequest


@SCHEDULERS.register("hrrn")
class HighestResponseRatioNext(CacheAwarePolicy):
    """By ratio (see the module), largest first, then arrival, then order (SGLang `hrrn`, without its cut-off)."""

    about = PolicyInfo(
        summary="by tokens prefilled since it came, per token that it has to compute itself after what is cached",
        complexity="O(log n) per request, and per request whose cached prefix changes; amortised O(log n) as the clock goes on",
        starves="nobody",
        cache_aware=CacheAware.YES,
    )

    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        return _HrrnQueue(index)


class _HrrnQueue(CacheAwareQueue):
    """A tournament of those who are not held back, and those who are behind it."""

    def __init__(self, index: PrefixIndex) -> None:
        super().__init__(index)
        self._clock = 0
        self._clock_at_arrival: dict[RequestId, int] = {}
        """The clock when each request came; kept until it is gone."""
        self._tournament: KineticTournament[WaitingRequest] = KineticTournament()
        self._players: dict[WaitingRequest, Player[WaitingRequest]] = {}
        self._deprioritized = SeqHeap()

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._clock_at_arrival.setdefault(seq.request.id, self._clock)
        super().add(seq, now, front=front)

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        self._clock += prefill_tokens

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        super().on_sequence_end(seq, now)
        self._clock_at_arrival.pop(seq.request.id, None)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        super().on_step_start(step, now)
        self._apply_changes()
        self._tournament.advance(self._clock)

    def first_waiting(self) -> WaitingRequest | None:
        self._apply_changes()
        first = self._tournament.winner()
        if first is not None:
            return first
        held_back = self._deprioritized.first()
        return None if held_back is None else self._waiting[held_back.request.id]

    def _apply_changes(self) -> None:
        moved = self._index.changed
        for waiter in moved:
            self._update_waiting(waiter)
        moved.clear()
        self._index.tree.dirty.clear()

    def _update_waiting(self, waiter: WaitingRequest) -> None:
        player = self._players.get(waiter)
        self._deprioritized.remove(waiter.seq.request.id)
        if waiter.node is not None and not waiter.deprioritized:
            self._update_player(waiter, player)
            return
        if player is not None:
            self._tournament.remove(player)
            del self._players[waiter]
        if waiter.node is not None:
            self._deprioritized.push(waiter.arrival_rank, waiter.seq)

    def _update_player(self, waiter: WaitingRequest, player: Player[WaitingRequest] | None) -> None:
        if player is None:
            since = self._clock_at_arrival[waiter.seq.request.id]
            player = self._players[waiter] = Player(waiter, since, waiter.uncached_tokens, waiter.arrival_rank)
            self._tournament.add(player)
        else:
            player.size = waiter.uncached_tokens
            self._tournament.mark_changed(player)
