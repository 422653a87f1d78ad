"""LoopClock: the clock of deadlines, which does not count time in which the process stood still.

A process may be stopped (SIGSTOP, a frozen container, a paused machine), or get no CPU. What clients and engines have sent
meanwhile lies in its sockets, and the event loop runs timers before it reads them: by the time of day, a client that was in
time would be refused for being late.

    a beat     a timer, four times a second. One that comes more than `STALL_SECS` late ends a stall
    the clock  goes on from where the stall began: what was due in 40 s is due in 40 s
    a deadline that falls due just then is looked at again after `CATCH_UP_SECS`, when the sockets have been read

Example: a body must come within 60 s, and after 10 s the process is stopped for 62 s. The client has 50 s left.

Queue timeouts count the time of day: they say how long a client waits, and it has waited. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from maitred.wire.clock import Clock

BEAT_SECS: Final = 0.25
"""Seconds between two beats: what a stall is counted from is known to within so many."""
STALL_SECS: Final = 0.5
"""Seconds by which a beat may be late before that is a stall. A long turn of the loop is none, nor is a machine that is busy
for a moment."""
CATCH_UP_SECS: Final = 0.1
"""Seconds that the loop has, after a stall, to read what lies in its sockets. XXX: a guess. To be measured: how long thousands
of connections take, all of which have something to read."""
TIMER_SECS: Final = 0.001
"""How early a deadline may count as passed: a loop's timer may ring so early, and sums with `_lost` are rounded. A timer
that is set again for the rest would be due at once, over and over."""
MAX_STALL_SECS: Final = 3600.0  # who has waited for longer is gone
log = logging.getLogger("maitred.wire")


class LoopClock:
    """The clock of one event loop; times are in seconds, as those of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """`clock` says how much CPU time the loop has used."""
        self._loop, self._clock = loop, clock
        self._lost = 0.0
        """Seconds that do not count."""
        self._caught_up_at = 0.0
        """When the sockets have been read after the last stall, by the loop's time."""
        self.last_beat = 0.0
        """The time that counted at the last beat: at most `BEAT_SECS` old, or as long as the loop has been held up."""
        self._set_beat()

    def time(self) -> float:
        """Return the time that counts."""
        now = self._loop.time()
        # No further than a stall would begin: the beat that ends one may take back what lies beyond, and the clock must never
        # run backwards.
        return (now if now < self._limit else self._limit) - self._lost

    @property
    def is_catching_up(self) -> bool:
        """Whether the process has just stood still, so that there may be data in the sockets that came in time."""
        now = self._loop.time()
        return now < self._caught_up_at or now > self._limit

    def next_look(self, due: float) -> float:
        """Return when a deadline is to be looked at again, or 0 if it has passed."""
        now = self.time()
        if due > now + TIMER_SECS:
            return due
        return now + CATCH_UP_SECS if self.is_catching_up else 0.0

    def call_at(self, at: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `callback` when this clock shows `at`, or earlier, if there is a stall until then."""
        return self._loop.call_at(at + self._lost, callback)

    def loop_time(self, at: float) -> float:
        """Return the time of the loop's own clock when this one shows `at`, if there is no further stall."""
        return at + self._lost

    def _set_beat(self) -> None:
        now = self._loop.time()
        self.last_beat = now - self._lost
        self._due = now + BEAT_SECS
        self._limit = self._due + STALL_SECS
        self._cpu = self._clock.cpu_secs()
        self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        # CPU time that the loop itself has used is no stall: deadlines do not stretch under overload.
        stall = min(MAX_STALL_SECS, now - self._due - (self._clock.cpu_secs() - self._cpu) - STALL_SECS)
        if stall > 0:
            self._lost += stall
            self._caught_up_at = now + CATCH_UP_SECS
            log.warning("the process stood still for %.1f s: deadlines of connections are extended by that", stall + STALL_SECS)
        self._set_beat()


_CLOCKS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, LoopClock]] = WeakKeyDictionary()


def clock_of(loop: asyncio.AbstractEventLoop, clock: Clock = Clock()) -> LoopClock:
    """Return the clock of a loop, which runs from the first call on; `clock` is that of its process."""
    loop_clock = _CLOCKS.get(loop)
    if loop_clock is None:
        loop_clock = _CLOCKS[loop] = LoopClock(loop, clock)
    return loop_clock
