"""The places of requests at a gateway whose scheduler is another process.

A request with a slot goes where that was granted (`RemoteAdmission`), and asks for another place when its backend has failed
it. One that needs no slot is placed here, by a router of this gateway, among the backends as the scheduler tells them. Compiled
(`tools/compile.py`).
"""

from __future__ import annotations

from maitred.core.contracts import Router
from maitred.core.units import Micros
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.failures import AnsweredError, BackendAbandoned, FailedAttempts, UsageRefused
from maitred.scheduler.link.failure_kinds import FailureKind
from maitred.scheduler.placements import Place, ProgramPlacement, RoutedPlacement
from maitred.scheduler.requests import ScheduledRequest
from maitred.scheduler.sharing.remote_admission import RemoteAdmission
from maitred.wire.errors import PoolTimeout, Withheld


class RemotePlacement(RoutedPlacement):
    """The places of requests that a router places."""

    def __init__(self, fleet: FleetView, admission: RemoteAdmission, router: Router) -> None:
        super().__init__(fleet, admission, router)
        self._remote = admission

    def first(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        if not self._remote.has(scheduled.request.id):
            return super().first(scheduled, now)
        return _granted(self._fleet, self._remote.place_of(scheduled.request.id))

    def has_another(self, scheduled: ScheduledRequest) -> bool:
        failed = scheduled.failed
        return (failed is not None and isinstance(failed.failure, Withheld)) or super().has_another(scheduled)

    async def next(self, scheduled: ScheduledRequest, place: Place) -> Place | None:
        failed = scheduled.failed
        if failed is None or not self._remote.has(scheduled.request.id):
            return self.again(scheduled, self._remote.clock.now())
        return _granted(self._fleet, await _ask_again(self._remote, scheduled, failed))


class RemoteProgramPlacement(ProgramPlacement):
    """The places of requests of programs. All of them need slots."""

    def __init__(self, fleet: FleetView, admission: RemoteAdmission) -> None:
        super().__init__(fleet, admission)
        self._remote = admission

    def first(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        return _granted(self._fleet, self._remote.place_of(scheduled.request.id))

    async def next(self, scheduled: ScheduledRequest, place: Place) -> Place | None:
        assert scheduled.failed is not None
        return _granted(self._fleet, await _ask_again(self._remote, scheduled, scheduled.failed))


def _granted(fleet: FleetView, place: tuple[int, int | None] | None) -> Place | None:
    return None if place is None else (fleet.seats[place[0]], place[1], False)


async def _ask_again(
    remote: RemoteAdmission, scheduled: ScheduledRequest, failed: FailedAttempts
) -> tuple[int, int | None] | None:
    return await remote.ask_again(scheduled.request.id, str(failed.failure), _kind_of(failed))


def _kind_of(failed: FailedAttempts) -> FailureKind:
    """Return how a request has failed last."""
    failure = failed.failure
    if isinstance(failure, AnsweredError):
        return FailureKind.BUSY if failure.is_busy else FailureKind.ANSWERED
    if isinstance(failure, BackendAbandoned):
        return FailureKind.ABANDONED
    if isinstance(failure, UsageRefused):
        return FailureKind.USAGE_REFUSED
    if isinstance(failure, Withheld):
        return FailureKind.WITHHELD
    if isinstance(failure, PoolTimeout):
        return FailureKind.NO_CONNECTION
    return FailureKind.BROKEN if failed.may_have_died else FailureKind.OTHER
