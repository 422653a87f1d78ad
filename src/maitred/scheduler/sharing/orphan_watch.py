"""OrphanWatch: asks engines for the requests of gateways that are gone, which hold their slots until these have ended.

Such slots are held until their backends show the requests gone (`link.unaccounted`). So these backends are asked ten times a
second while there are any, and not when their regular poll is due: a backend notices at once that the connections of a process
that has ended are closed. A scheduler that has learned for a lease and misses gateways asks likewise
what these may still have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.wire.clock import Clock

log = logging.getLogger("maitred.gateway")
_POLL_SECS: Final = 0.1


class OrphanWatch:
    """Looks after slots that have lost their gateway, in a task of its own (`run`)."""

    def __init__(
        self, end: SchedulerEnd, fleet: FleetView, watch: FleetWatch, clock: Clock, flush_soon: Callable[[], object]
    ) -> None:
        """`flush_soon` has written what was said."""
        self._end, self._fleet, self._watch, self._clock = end, fleet, watch, clock
        self._flush_soon = flush_soon
        self._wakeup = asyncio.Event()
        """Set when slots may have lost their gateway, or something is to be learned."""

    def look(self) -> None:
        """Look whether slots have lost their gateway, or something is to be learned."""
        self._wakeup.set()

    async def run(self) -> None:
        """Ask engines whenever there is something to ask; until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while not self._end.settling.is_settled:
                try:
                    for index in sorted(self._end.settling.unsettled_backends(self._clock.now())):
                        await self._ask(self._fleet.seats[index])
                except Exception:  # Without this task, the slots would be held for as long as may be.
                    log.exception("the backends could not be asked for requests of gateways that are gone")
                await asyncio.sleep(_POLL_SECS)

    async def _ask(self, backend: Backend) -> None:
        """Ask a backend how many requests it has, if it says so."""
        asked_at = self._clock.now()  # Not that of a poll in flight, whose answer may be older.
        load = await self._watch.metrics_reader(backend).read(samples_only=True)
        if load is not None and load.running is not None:
            self._end.on_reading(backend.index, load.running + (load.waiting or 0), asked_at, self._clock.now())
            self._flush_soon()
