"""When will it be worth while to ask again?

A rejected request is told how long the queue that it found needs to drain: those who wait, divided by how fast the queue has
moved of late. "Of late" is the last moves of this busy spell: an hour without a queue says nothing about its speed.

Each such promise is kept score of: when those have left who waited at the time, the promise is compared with how long it took.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from maitred.histogram import ERRORS, Histogram
from maitred.units import SECOND, Micros

FLOOR: Final[Micros] = SECOND
"""The least that is promised: nobody is told to come back at once."""
_MOVES: Final = 64
"""So many last moves tell the speed."""
_PROMISES: Final = 256
"""So many promises are watched at a time; others are made and not scored."""


class _Promise(msgspec.Struct, frozen=True, gc=False):
    made_at: Micros
    span: Micros
    kept_when: int
    """When so many have left the queue."""


class Forecast:
    """Of one queue. It is told who joins and who leaves."""

    __slots__ = ("_left", "_moves", "_promises", "_since", "errors")

    def __init__(self) -> None:
        self.errors = Histogram(ERRORS)
        """What was promised minus what it took, µs."""
        self._since: Micros = 0
        self._moves: deque[Micros] = deque(maxlen=_MOVES)
        self._left = 0
        self._promises: deque[_Promise] = deque()

    def began(self, now: Micros) -> None:
        """The queue was empty, and somebody joined."""
        self._since = now
        self._moves.clear()

    def moved(self, now: Micros) -> None:
        """Somebody was admitted from the queue."""
        self._moves.append(now)
        self.left(now)

    def left(self, now: Micros) -> None:
        """Somebody is not in the queue any more, for whatever reason."""
        self._left += 1
        while self._promises and self._promises[0].kept_when <= self._left:
            promise = self._promises.popleft()
            self.errors.observe(promise.span - (now - promise.made_at))

    def promise(self, waiting: int, now: Micros, most: Micros) -> Micros:
        """How long the `waiting` who are in the queue will need to leave it: from FLOOR up to `most`. A queue that has not
        moved yet is taken to do so now. FLOOR if nobody waits."""
        if not waiting:
            return FLOOR
        moves = len(self._moves)
        since = self._moves[0] if moves == _MOVES else self._since
        span = max(FLOOR, min(most, waiting * (now - since) // max(moves, 1)))
        if len(self._promises) < _PROMISES:
            self._promises.append(_Promise(now, span, self._left + waiting))
        return span
