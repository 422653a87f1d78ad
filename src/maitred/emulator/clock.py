"""The clock of an event loop, as fine as a pacer needs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMER_GRAIN = 0.001
"""uvloop's timers, and its `loop.time()`, are whole milliseconds."""


class LoopClock:
    """Monotonic time in full resolution, and the running loop's timers, which go off late rather than early: a timer that
    goes off a fraction too early would be set again for nothing, over and over until the instant has come."""

    def time(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        delay = when - time.monotonic()
        return asyncio.get_running_loop().call_later(delay + TIMER_GRAIN / 2 if delay > 0 else 0, callback)
