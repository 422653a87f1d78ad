"""bounded: another policy, and a limit to what anybody can lose by it.

Two ceilings, either or both:

    max_wait           once a request has waited that long, nothing that arrived later starts before it
    max_displacement   of those that arrived later, at most so many start before it while it waits

Who has reached a ceiling goes first, the earliest arrival before others, and the policy inside is not asked. The earliest
arrival has always waited longest and been passed over most, so it is the only one to watch. How often each was passed over
is kept as differences between neighbours in the order of arrival: a start adds one at its elder neighbour, which is one for
all who are older; who leaves hands its difference to its elder neighbour. So the count of the earliest is the sum of all.
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
"""Arrival and id."""

DEFAULT_MAX_WAIT_S = 10.0


@SCHEDULERS.register("bounded")
class Bounded(QueuePolicy):
    """The policy inside, until somebody has waited for `max_wait` seconds, or has been passed over by `max_displacement`
    requests that arrived later. A preempted sequence's wait counts from its arrival, its displacement from its return."""

    about = PolicyInfo(
        summary="the policy inside, with a ceiling on waiting (max_wait, s) or on being passed over (max_displacement)",
        complexity="as inside, and O(log n) per request",
        starves="nobody: past the ceiling, order of arrival",
        cache_aware=CacheAware.AS_INNER,
    )

    def __init__(
        self, policy: QueuePolicy | None = None, max_wait: float | None = None, max_displacement: int | None = None
    ) -> None:
        """`policy`: lpm if nobody says; without any ceiling, `max_wait` is 10 s. Raises ValueError for a ceiling that cannot
        be."""
        if max_wait is None and max_displacement is None:
            max_wait = DEFAULT_MAX_WAIT_S
        if max_wait is not None and not 0 <= max_wait <= 1e9:
            raise ValueError(f"max_wait must be from 0 to 1e9 seconds, not {max_wait}")
        if max_displacement is not None and max_displacement < 0:
            raise ValueError(f"max_displacement must be at least 0, not {max_displacement}")
        self.inner = SCHEDULERS.get("lpm")() if policy is None else policy
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
        """By how much one was passed over more often than its younger neighbour; none: by nothing."""
        self._oldest_overtakes = 0
        """How often the earliest arrival was."""

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
        elder = self._unlink(seq)
        if elder is not None:
            self._overtake_deltas[elder] = self._overtake_deltas.get(elder, 0) + 1
            self._oldest_overtakes += 1
        return seq

    def next_order_change(self, now: Micros) -> Micros | None:
        if not self._by_arrival or self._at_displacement_limit() or self._at_wait_limit(now):
            return None
        overdue = None if self._max_wait is None else self._by_arrival[0][0] + self._max_wait
        return earliest(overdue, self._inner.next_order_change(now))

    def _forced_head(self) -> SequenceState | None:
        """The one that must go first, if any."""
        if self._by_arrival and (self._at_displacement_limit() or self._at_wait_limit(self._now)):
            return self._seqs[self._by_arrival[0][1]]
        return None

    def _at_displacement_limit(self) -> bool:
        return self._max_displacement is not None and self._oldest_overtakes >= self._max_displacement

    def _at_wait_limit(self, now: Micros) -> bool:
        return self._max_wait is not None and now - self._by_arrival[0][0] >= self._max_wait

    def _unlink(self, seq: SequenceState) -> _ArrivalRank | None:
        """`seq` waits no more. Returns its elder neighbour's place."""
        place = (seq.request.arrival, seq.request.id)
        index = bisect_left(self._by_arrival, place)
        del self._by_arrival[index], self._seqs[place[1]]
        passed = self._overtake_deltas.pop(place, 0)
        if index == 0:
            self._oldest_overtakes -= passed
            return None
        elder = self._by_arrival[index - 1]
        if passed:
            self._overtake_deltas[elder] = self._overtake_deltas.get(elder, 0) + passed
        return elder
