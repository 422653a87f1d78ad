"""hrrn: highest response ratio next.

    ratio = prompt tokens prefilled in this instance since the request came / tokens that it has to compute itself

So a short request goes soon, and a long one's turn comes. The clock is work done and not time (SGLang's rule).

For example, a request with 120 uncached tokens came first, and one with 20 came after 120 tokens had been prefilled. When 20
more are prefilled, the ratios are 140/120 and 20/20, and the long one goes first; after 25 more they are 145/120 and 25/20, and
the short one does. If then 96 tokens of the long prompt are cached, its ratio is 145/24.

The largest ratio is found by a `KineticTournament`, so a pass costs the requests that change places and not all that wait.
"""

from __future__ import annotations

from maitred.core.contracts import SortKey, StepView, WaitQueue
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.kinetic_tournament import KineticTournament, Player
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.prefix_orders import CacheAwarePolicy, CacheAwareQueue
from maitred.queueing.prefix_tree import WaitingRequest


@SCHEDULERS.register("hrrn")
class HighestResponseRatioNext(CacheAwarePolicy):
    """By tokens prefilled since the request came, per token that it has to compute itself, largest first, then arrival (SGLang
    `hrrn`, without its cut-off). Deprioritized requests go last."""

    about = PolicyInfo(
        summary="by tokens prefilled since it came, per token that it has to compute itself after what is cached",
        complexity="O(log n) per request, and per change of a cached prefix; amortised O(log n) as the clock goes on",
        starves="nothing",
        cache_aware=CacheAware.YES,
    )

    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        return _HrrnQueue(index)


class _HrrnQueue(CacheAwareQueue):
    """A tournament of the requests that are not deprioritized, and behind it the others in order of arrival."""

    def __init__(self, index: PrefixIndex) -> None:
        super().__init__(index)
        self._clock = 0
        """Prompt tokens prefilled in this instance so far."""
        self._clock_at_arrival: dict[RequestId, int] = {}
        """The clock when each request came; kept until the request has left the instance."""
        self._tournament: KineticTournament[WaitingRequest] = KineticTournament()
        self._players: dict[WaitingRequest, Player[WaitingRequest]] = {}
        self._deprioritized: IndexedHeap[RequestId, SortKey, WaitingRequest] = IndexedHeap()

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        # A preempted request is added again and keeps the clock of its first arrival, so that it does not lose its age. (SGLang
        # begins it anew.)
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
        return self._tournament.winner() or self._deprioritized.peek()

    def _apply_changes(self) -> None:
        changed = self._index.changed
        for waiting in changed:
            self._update_waiting(waiting)
        changed.clear()
        self._index.tree.dirty.clear()

    def _update_waiting(self, waiting: WaitingRequest) -> None:
        """Put `waiting` into the tournament, or behind it, or take it out of both if it waits no more."""
        player = self._players.get(waiting)
        self._deprioritized.remove(waiting.seq.request.id)
        if waiting.node is not None and not waiting.deprioritized:
            self._update_player(waiting, player)
            return
        if player is not None:
            self._tournament.remove(player)
            del self._players[waiting]
        if waiting.node is not None:
            self._deprioritized.push(waiting.seq.request.id, waiting.arrival_rank, waiting)

    def _update_player(self, waiting: WaitingRequest, player: Player[WaitingRequest] | None) -> None:
        if player is None:
            since = self._clock_at_arrival[waiting.seq.request.id]
            player = self._players[waiting] = Player(waiting, since, waiting.uncached_tokens, waiting.arrival_rank)
            self._tournament.add(player)
        else:
            player.size = waiting.uncached_tokens
            self._tournament.mark_changed(player)
