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

from maitred.contracts import PrefixView, QueuePolicy, StepView, WaitQueue
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.wrapping import Around, earliest
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros, from_seconds

_Place: TypeAlias = tuple[Micros, RequestId]
"""Arrival and id."""

USUAL_WAIT = 10.0


@SCHEDULERS.register("bounded")
class Bounded(QueuePolicy):
    """The policy inside, until somebody has waited for `max_wait` seconds, or has been passed over by `max_displacement`
    requests that arrived later. A preempted sequence's wait counts from its arrival, its displacement from its return."""

    about = PolicyInfo(
        line="the policy inside, with a ceiling on waiting (max_wait, s) or on being passed over (max_displacement)",
        complexity="as inside, and O(log n) per request",
        starves="nobody: past the ceiling, order of arrival",
        cache_aware=CacheAware.AS_INSIDE,
    )

    def __init__(
        self, policy: QueuePolicy | None = None, max_wait: float | None = None, max_displacement: int | None = None
    ) -> None:
        """`policy`: lpm if nobody says; without any ceiling, `max_wait` is 10 s. Raises ValueError for a ceiling that cannot
        be."""
        if max_wait is None and max_displacement is None:
            max_wait = USUAL_WAIT
        if max_wait is not None and not 0 <= max_wait <= 1e9:
            raise ValueError(f"max_wait must be from 0 to 1e9 seconds, not {max_wait}")
        if max_displacement is not None and max_displacement < 0:
            raise ValueError(f"max_displacement must be at least 0, not {max_displacement}")
        self.inside = SCHEDULERS.get("lpm")() if policy is None else policy
        self._max_wait = None if max_wait is None else from_seconds(max_wait)
        self._max_displacement = max_displacement

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _BoundedQueue(self.inside.queue(prefix, rng), self._max_wait, self._max_displacement)


class _BoundedQueue(Around):
    def __init__(self, inside: WaitQueue, max_wait: Micros | None, max_displacement: int | None) -> None:
        super().__init__(inside)
        self._max_wait, self._max_displacement = max_wait, max_displacement
        self._now: Micros = 0
        self._line: list[_Place] = []
        self._seqs: dict[RequestId, Seq] = {}
        self._passed: dict[_Place, int] = {}
        """By how much one was passed over more often than its younger neighbour; none: by nothing."""
        self._most_passed = 0
        """How often the earliest arrival was."""

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        super().add(seq, now, front=front)
        self._seqs[seq.request.id] = seq
        insort(self._line, (seq.request.arrival, seq.request.id))

    def remove(self, request_id: RequestId) -> Seq | None:
        seq = self._inside.remove(request_id)
        if seq is not None:
            self._forget(seq)
        return seq

    def begin(self, step: StepView, now: Micros) -> None:
        self._now = now
        super().begin(step, now)

    def peek(self) -> Seq | None:
        return self._owed() or self._inside.peek()

    def pop(self) -> Seq:
        seq = self._owed()
        if seq is None:
            seq = self._inside.pop()
        else:
            self._inside.remove(seq.request.id)
        elder = self._forget(seq)
        if elder is not None:
            self._passed[elder] = self._passed.get(elder, 0) + 1
            self._most_passed += 1
        return seq

    def stable_until(self, now: Micros) -> Micros | None:
        if not self._line or self._displaced() or self._overdue(now):
            return None
        overdue = None if self._max_wait is None else self._line[0][0] + self._max_wait
        return earliest(overdue, self._inside.stable_until(now))

    def _owed(self) -> Seq | None:
        """The one that must go first, if any."""
        if self._line and (self._displaced() or self._overdue(self._now)):
            return self._seqs[self._line[0][1]]
        return None

    def _displaced(self) -> bool:
        return self._max_displacement is not None and self._most_passed >= self._max_displacement

    def _overdue(self, now: Micros) -> bool:
        return self._max_wait is not None and now - self._line[0][0] >= self._max_wait

    def _forget(self, seq: Seq) -> _Place | None:
        """`seq` waits no more. Returns its elder neighbour's place."""
        place = (seq.request.arrival, seq.request.id)
        index = bisect_left(self._line, place)
        del self._line[index], self._seqs[place[1]]
        passed = self._passed.pop(place, 0)
        if index == 0:
            self._most_passed -= passed
            return None
        elder = self._line[index - 1]
        if passed:
            self._passed[elder] = self._passed.get(elder, 0) + passed
        return elder
