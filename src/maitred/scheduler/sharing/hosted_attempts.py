"""The stand-in of a request of another process at its backend: what the fleet, learned slots and ejection see of it.

It has no task to stop. Where the fleet takes a request away from its backend (`cancel`), its gateway is asked to do so.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend, UpstreamRequest
from maitred.scheduler.backends.served_models import ServedModel
from maitred.scheduler.drivers.programs import MemoryLease
from maitred.scheduler.failures import FailedAttempts
from maitred.scheduler.requests import ScheduledRequest


class HostedTimes:
    """What is known here of an answer."""

    def __init__(self, sent_at: Micros) -> None:
        self.sent_at: Micros | None = sent_at
        self.first_data_at: Micros | None = None
        self.last_data_at: Micros = 0
        self.num_events = 0


class HostedAttempt(UpstreamRequest):
    """A request at one backend."""

    def __init__(
        self,
        backend: Backend,
        request: Request,
        task: asyncio.Task[None],
        now: Micros,
        on_abandoned: Callable[[], object],
    ) -> None:
        """`task` is not that of the request, and is never stopped. `on_abandoned` is called where the request would be."""
        super().__init__(backend, request, task)
        self.times = HostedTimes(now)
        self.record = self.times
        self._on_abandoned = on_abandoned

    def cancel(self) -> None:
        """Ask the gateway to stop the request at this backend."""
        self._on_abandoned()

    def begin_answer(self, now: Micros) -> None:
        """Note that the first data of the answer has come, which goes to the client."""
        self.is_committed = True
        self.times.first_data_at = self.times.last_data_at = now
        if self.own is not None:
            self.note_events(1, now)

    def note_pieces(self, pieces: int, now: Micros) -> None:
        """Note that the answer has had so many pieces so far."""
        self.times.last_data_at = now
        if self.own is not None and pieces > self.own.pieces:
            self.backend.own_requests.note_pieces(self.own, pieces, now)


class HostedRequest(ScheduledRequest):
    """A request as placements see it."""

    def __init__(
        self, request: Request, served: ServedModel, lease: MemoryLease | None = None, failed: FailedAttempts | None = None
    ) -> None:
        self.request = request
        self.served = served
        self.asks_each = False
        self.memory_lease = lease
        self.failed = failed
