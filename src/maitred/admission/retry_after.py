"""When will it be worth while to ask again?

A rejected request is told how long the queue that it found needs to drain: those who wait, divided by how fast the queue has
moved of late. "Of late" is the last moves of this busy spell: an hour without a queue says nothing about its speed.

Each such promise is kept score of: when those have left who waited at the time, the promise is compared with how long it took.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from maitred.core.histogram import ERROR_BOUNDS, Histogram
from maitred.core.units import SECOND, Micros

MIN_RETRY_AFTER: Final[Micros] = SECOND
"""The least that is promised: nobody is told to come back at once."""
_SPEED_WINDOW: Final = 64
"""So many last moves tell the speed."""
_MAX_SCORED_ESTIMATES: Final = 256
"""So many promises are watched at a time; others are made and not scored."""


class _Estimate(msgspec.Struct, frozen=True, gc=False):
    made_at: Micros
    span: Micros
    due_at_departure: int
    """When so many have left the queue."""


class RetryAfterEstimator:
    """Of one queue. It is told who joins and who leaves."""

    __slots__ = ("_admission_times", "_departures", "_estimates", "_queue_started_at", "errors")

    def __init__(self) -> None:
        self.errors = Histogram(ERROR_BOUNDS)
        """What was promised minus what it took, µs."""
        self._queue_started_at: Micros = 0
        self._admission_times: deque[Micros] = deque(maxlen=_SPEED_WINDOW)
        self._departures = 0
        self._estimates: deque[_Estimate] = deque()

    def on_queue_started(self, now: Micros) -> None:
        """The queue was empty, and somebody joined."""
        self._queue_started_at = now
        self._admission_times.clear()

    def on_admitted(self, now: Micros) -> None:
        """Somebody was admitted from the queue."""
        self._admission_times.append(now)
        self.on_left(now)

    def on_left(self, now: Micros) -> None:
        """Somebody is not in the queue any more, for whatever reason."""
        self._departures += 1
        while self._estimates and self._estimates[0].due_at_departure <= self._departures:
            promise = self._estimates.popleft()
            self.errors.observe(promise.span - (now - promise.made_at))

    def estimate(self, waiting: int, now: Micros, most: Micros) -> Micros:
        """How long the `waiting` who are in the queue will need to leave it: from FLOOR up to `most`. A queue that has not
        moved yet is taken to do so now. FLOOR if nobody waits."""
        if not waiting:
            return MIN_RETRY_AFTER
        moves = len(self._admission_times)
        since = self._admission_times[0] if moves == _SPEED_WINDOW else self._queue_started_at
        span = max(MIN_RETRY_AFTER, min(most, waiting * (now - since) // max(moves, 1)))
        if len(self._estimates) < _MAX_SCORED_ESTIMATES:
            self._estimates.append(_Estimate(now, span, self._departures + waiting))
        return span
