"""Timeouts of blocks of code by the clock of the loop, which stands still while the process does (`loop_clock`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from maitred.wire.loop_clock import LoopClock, clock_of


@asynccontextmanager
async def timeout(secs: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block if it takes longer than `secs` of the clock, as `asyncio.timeout` does of the day."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as scope:
        watch = _Watch(clock_of(loop), secs, scope, loop)
        try:
            yield
        finally:
            watch.timer.cancel()


class _Watch:
    def __init__(self, clock: LoopClock, secs: float, scope: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
        self._clock, self._scope, self._loop = clock, scope, loop
        self._deadline = clock.time() + secs
        self.timer = clock.call_at(self._deadline, self._look)

    def _look(self) -> None:
        look = self._clock.next_look(self._deadline)
        if look:
            self.timer = self._clock.call_at(look, self._look)
        else:
            self._scope.reschedule(self._loop.time())
