"""`Retry-After`: when a rejected request should be sent again.

The estimate is how long the queue that the request found needs to drain at its present speed:

    estimate = waiting · (now - since) / admissions since then        at least 1 s, at most the queue timeout

`since` is when the queue last began, or its 64th last admission, whichever is later.

Example: a queue began at 100 s, and 8 requests were admitted from it until 104 s, one per 0.5 s. If 20 wait now, the
estimate is 20 · 4 / 8 = 10 s.

The estimates are scored: once as many requests have left the queue as waited at the time, the estimate is compared with
the time that this took.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from maitred.core.histogram import ERROR_BOUNDS, Histogram
from maitred.core.units import SECOND, Micros

MIN_RETRY_AFTER: Final[Micros] = SECOND
"""The smallest estimate, µs."""
_SPEED_WINDOW: Final = 64
"""Admissions from which the speed is computed. XXX: a guess: more of them even out answers of unequal length, fewer follow a
speed that changes. To be measured: the scores of the estimates, by this number."""
_MAX_SCORED_ESTIMATES: Final = 256
"""Estimates that are scored at a time; further ones are made and not scored, since a flood of rejections makes one for each."""


class _Estimate(msgspec.Struct, frozen=True, gc=False):
    made_at: Micros
    span: Micros
    """The estimate, µs."""
    due_at_departure: int
    """The number of departures from the queue at which the estimate is scored."""


class RetryAfterEstimator:
    """The estimates of one queue, which tells it of arrivals and departures."""

    __slots__ = ("_admission_times", "_departures", "_estimates", "_queue_started_at", "errors")

    def __init__(self) -> None:
        self.errors = Histogram(ERROR_BOUNDS)
        """Estimated minus real time, µs."""
        self._queue_started_at: Micros = 0
        self._admission_times: deque[Micros] = deque(maxlen=_SPEED_WINDOW)
        self._departures = 0
        self._estimates: deque[_Estimate] = deque()

    def on_queue_started(self, now: Micros) -> None:
        """Note that a request has joined the queue while it was empty."""
        self._queue_started_at = now
        self._admission_times.clear()  # An hour without a queue says nothing of the speed of this one.

    def on_admitted(self, now: Micros) -> None:
        """Note that a request was admitted from the queue."""
        self._admission_times.append(now)
        self.on_left(now)

    def on_left(self, now: Micros) -> None:
        """Note that a request has left the queue, for whatever reason, and score the estimates that are due."""
        self._departures += 1
        while self._estimates and self._estimates[0].due_at_departure <= self._departures:
            estimate = self._estimates.popleft()
            self.errors.observe(estimate.span - (now - estimate.made_at))

    def estimate(self, waiting: int, now: Micros, longest: Micros) -> Micros:
        """Return how long the `waiting` requests in the queue need to leave it, from MIN_RETRY_AFTER to `longest`, in
        µs. A queue from which none has been admitted yet is taken to admit one now."""
        if not waiting:
            return MIN_RETRY_AFTER
        admissions = len(self._admission_times)
        since = self._admission_times[0] if admissions == _SPEED_WINDOW else self._queue_started_at
        span = max(MIN_RETRY_AFTER, min(longest, waiting * (now - since) // max(admissions, 1)))
        if len(self._estimates) < _MAX_SCORED_ESTIMATES:
            # Departures and waiting requests together are all that have ever joined, a number that only grows. So estimates
            # are due in the order in which they are made, and `on_left` examines the first one alone.
            self._estimates.append(_Estimate(now, span, self._departures + waiting))
        return span
