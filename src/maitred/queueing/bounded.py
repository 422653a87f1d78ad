"""bounded: another policy, and a limit to what a request can lose by it.

Two ceilings, either or both:

    max_wait           once a request has waited that long, nothing that arrived later starts before it
    max_displacement   of the requests that arrived later, at most this many start before it while it waits

A request that has reached a ceiling goes first, and the inner policy is not asked.

How often each request was overtaken is kept as differences between neighbours in the order of arrival: `_overtake_deltas[r]` is
how much more often r was overtaken than its younger neighbour. So a start adds 1 at one place, the older neighbour of what
starts, and thereby to all that are older. A request that leaves hands its difference to its older neighbour. The oldest request
was overtaken as often as the sum of all differences says (`_oldest_overtakes`). For example, with 0, 1 and 2 waiting:

                              differences of 0, 1, 2     overtaken
    5 starts                  0  0  1                    1  1  1
    1 is removed              0  -  1                    1  -  1
    2 starts                  2  -  -                    2  -  -          the 1 of request 2, and 1 for its start
"""

from __future__ import annotations

from bisect import bisect_left, insort
from random import Random
from typing import TypeAlias

from maitred.core.contracts import PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros, from_seconds
from maitred.queueing.base import SCHEDULERS, CacheAware, DelegatingQueue, PolicyInfo, earliest

_ArrivalRank: TypeAlias = tuple[Micros, RequestId]
"""Arrival and id of a request."""

DEFAULT_MAX_WAIT_S = 10.0


@SCHEDULERS.register("bounded")
class Bounded(QueuePolicy):
    """The inner policy, until a request has waited for `max_wait` seconds, or `max_displacement` requests that arrived later
    have started before it. A preempted sequence's wait counts from its arrival, its displacement from its return to the
    queue."""

    about = PolicyInfo(
        summary="the inner policy, with a ceiling on waiting (max_wait, s) or on being overtaken (max_displacement)",
        complexity="as the inner policy, and O(log n) per request",
        starves="nothing: past the ceiling, order of arrival",
        cache_aware=CacheAware.AS_INNER,
    )

    def __init__(
        self, policy: QueuePolicy | None = None, max_wait: float | None = None, max_displacement: int | None = None
    ) -> None:
        """`policy` is lpm by default; without any ceiling, `max_wait` is 10 s. Raises ValueError for a ceiling out of range."""
        if max_wait is None and max_displacement is None:
            max_wait = DEFAULT_MAX_WAIT_S
        if max_wait is not None and not 0 <= max_wait <= 1e9:
            raise ValueError(f"max_wait must be from 0 to 1e9 seconds, not {max_wait}")
        if max_displacement is not None and max_displacement < 0:
            raise ValueError(f"max_displacement must be at least 0, not {max_displacement}")
        self.inner = SCHEDULERS.create("lpm") if policy is None else policy
        self._max_wait = None if max_wait is None else from_seconds(max_wait)
        self._max_displacement = max_displacement

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _BoundedQueue(self.inner.make_queue(prefix, rng), self._max_wait, self._max_displacement)


class _BoundedQueue(DelegatingQueue):
    def __init__(self, inner: WaitQueue, max_wait: Micros | None, max_displacement: int | None) -> None:
        super().__init__(inner)
        self._max_wait, self._max_displacement = max_wait, max_displacement
        self._now: Micros = 0
        self._by_arrival: list[_ArrivalRank] = []
        self._seqs: dict[RequestId, SequenceState] = {}
        self._overtake_deltas: dict[_ArrivalRank, int] = {}
        """How much more often each request was overtaken than its younger neighbour, where that is not 0."""
        self._oldest_overtakes = 0
        """How often the earliest arrival was overtaken."""

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        super().add(seq, now, front=front)
        self._seqs[seq.request.id] = seq
        insort(self._by_arrival, (seq.request.arrival, seq.request.id))

    def remove(self, request_id: RequestId) -> SequenceState | None:
        seq = self._inner.remove(request_id)
        if seq is not None:
            self._unlink(seq)
        return seq

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._now = now
        super().on_step_start(step, now)

    def peek(self) -> SequenceState | None:
        return self._forced_head() or self._inner.peek()

    def pop(self) -> SequenceState:
        seq = self._forced_head()
        if seq is None:
            seq = self._inner.pop()
        else:
            self._inner.remove(seq.request.id)
        # One addition counts for all older requests: each one's count is the sum of the differences from itself to the
        # youngest.
        older = self._unlink(seq)
        if older is not None:
            self._overtake_deltas[older] = self._overtake_deltas.get(older, 0) + 1
            self._oldest_overtakes += 1
        return seq

    def next_order_change(self, now: Micros) -> Micros | None:
        if not self._by_arrival or self._at_displacement_limit() or self._at_wait_limit(now):
            return None  # the head is the earliest arrival until it leaves
        wait_limit = None if self._max_wait is None else self._by_arrival[0][0] + self._max_wait
        return earliest(wait_limit, self._inner.next_order_change(now))

    def _forced_head(self) -> SequenceState | None:
        """Return the earliest arrival if it has reached a ceiling, else None."""
        # It has waited longest and has been overtaken most often, so it is the only one to watch.
        if self._by_arrival and (self._at_displacement_limit() or self._at_wait_limit(self._now)):
            return self._seqs[self._by_arrival[0][1]]
        return None

    def _at_displacement_limit(self) -> bool:
        return self._max_displacement is not None and self._oldest_overtakes >= self._max_displacement

    def _at_wait_limit(self, now: Micros) -> bool:
        return self._max_wait is not None and now - self._by_arrival[0][0] >= self._max_wait

    def _unlink(self, seq: SequenceState) -> _ArrivalRank | None:
        """Take `seq` out of the order of arrival. Returns its older neighbour, or None if it was the oldest."""
        rank = (seq.request.arrival, seq.request.id)
        index = bisect_left(self._by_arrival, rank)
        del self._by_arrival[index], self._seqs[rank[1]]
        delta = self._overtake_deltas.pop(rank, 0)
        if index == 0:
            self._oldest_overtakes -= delta
            return None
        older = self._by_arrival[index - 1]
        if delta:
            self._overtake_deltas[older] = self._overtake_deltas.get(older, 0) + delta
        return older
