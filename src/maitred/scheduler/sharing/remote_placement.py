"""The places of requests at a gateway whose scheduler is another process.

A request with a slot goes where that was granted (`RemoteAdmission`), and asks for another place when its backend has failed
it. One that needs no slot is placed here, by a router of this gateway, among the backends as the scheduler tells them. Compiled
(`tools/compile.py`).
"""

from __future__ import annotations

from maitred.core.contracts import Router
from maitred.core.units import Micros
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.failures import BackendAbandoned, UsageRefused
from maitred.scheduler.placements import Place, RoutedPlacement
from maitred.scheduler.requests import ScheduledRequest
from maitred.scheduler.sharing.remote_admission import RemoteAdmission


class RemotePlacement(RoutedPlacement):
    """The places of all requests."""

    def __init__(self, fleet: FleetView, admission: RemoteAdmission, router: Router) -> None:
        super().__init__(fleet, admission, router)
        self._remote = admission

    def first(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        if not self._remote.has(scheduled.request.id):
            return super().first(scheduled, now)
        return self._granted(self._remote.place_of(scheduled.request.id))

    async def next(self, scheduled: ScheduledRequest, place: Place) -> Place | None:
        failed = scheduled.failed
        if failed is None or not self._remote.has(scheduled.request.id):
            return self.again(scheduled, self._remote.clock.now())
        failure = failed.failure
        counts = not isinstance(failure, BackendAbandoned | UsageRefused)
        granted = await self._remote.ask_again(scheduled.request.id, str(failure), counts, failed.may_be_sent_again)
        return self._granted(granted)

    def _granted(self, place: tuple[int, int | None] | None) -> Place | None:
        return None if place is None else (self._fleet.backends[place[0]], place[1], False)
