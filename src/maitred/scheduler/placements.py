"""Where a request goes, and where next if a backend fails it.

    RoutedPlacement     where the router wants it, among the backends that may have it
    GrantedPlacement    where its program has memory; if that backend fails it, the program moves, or, where no other has room,
                        the request alone goes elsewhere

A backend that fails a request is not asked again by it, but in two cases: it has answered with an error, is not busy, and no
other backend is left; or the request has waited for a slot meanwhile. A backend that was abandoned is left to its polls: they
say when it may have the request again. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from maitred.core.contracts import Router
from maitred.core.errors import MaitredError
from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend, others_serving
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.drivers.admission import RealTimeAdmission
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.failures import BackendAbandoned, FailedAttempts, UsageRefused
from maitred.scheduler.programs.memories import ProgramMemories
from maitred.scheduler.requests import ScheduledRequest
from maitred.wire.errors import PoolTimeout, Withheld

Place: TypeAlias = tuple[Backend, int | None, bool]
"""A backend; the data-parallel rank to ask for, None: the engine chooses; whether it stands in for the one where the program of
the request has memory."""
_NONE_TRIED: Final[Sequence[Backend]] = ()


class MemoryLost(MaitredError):  # noqa: N818  (a step of the way of a request, not a fault)
    """The program of a request has no memory any more, and the request must give its slot back while it waits."""


class Placement:
    """Gives a request its places in turn: `first`, and then `on_failure` and `next` while it `has_another`."""

    def __init__(self, fleet: FleetView, admission: RealTimeAdmission) -> None:
        self._fleet, self._admission = fleet, admission

    def first(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        """Return where a request goes at `now`, or None if no backend may have it."""
        raise NotImplementedError

    def on_failure(self, place: Place, failed: FailedAttempts) -> None:
        """Note where a request has failed."""
        raise NotImplementedError

    def has_another(self, scheduled: ScheduledRequest) -> bool:
        """Return whether there is a place for a request that has failed; otherwise there is nothing to wait for, and nothing
        that the budget of retries should pay."""
        raise NotImplementedError

    async def next(self, scheduled: ScheduledRequest, place: Place) -> Place | None:
        """Return where a request goes that has failed at `place`, or None if no backend may have it any more."""
        raise NotImplementedError

    def _others(self, scheduled: ScheduledRequest) -> Sequence[Backend]:
        """Return the backends that a request has not tried. If all others are ejected, one of them is tried early; what a
        backend has stored is asked of them without that."""
        model, tried = scheduled.request.model, _tried(scheduled)
        others = [backend for backend in self._willing(scheduled) if backend not in tried]
        if others:
            return others
        if scheduled.asks_each:
            return others_serving(self._fleet.backends, model, tried)
        return self._fleet.ejection.last_resort(model, tried)

    def _willing(self, scheduled: ScheduledRequest) -> Sequence[Backend]:
        served = scheduled.served
        return self._fleet.ejection.candidates(served.name, served.backends, may_probe=False)


class RoutedPlacement(Placement):
    """The places of requests that a router places."""

    def __init__(self, fleet: FleetView, admission: RealTimeAdmission, router: Router) -> None:
        super().__init__(fleet, admission)
        self._router = router

    def first(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        ejection, model = self._fleet.ejection, scheduled.served.name
        serving: Sequence[Backend] = scheduled.served.backends
        if ejection.is_restricted and not scheduled.asks_each:  # What one of them has stored is asked of each.
            serving = ejection.candidates(model, serving, may_probe=scheduled.failed is None)
            serving = serving or ejection.last_resort(model, ())
        return self._choose(scheduled, serving, now)

    def on_failure(self, place: Place, failed: FailedAttempts) -> None:
        if not isinstance(failed.failure, BackendAbandoned | UsageRefused | Withheld):
            failed.tried.append(place[0])

    def has_another(self, scheduled: ScheduledRequest) -> bool:
        return bool(self._untried(scheduled))

    async def next(self, scheduled: ScheduledRequest, place: Place) -> Place | None:
        untried = self._untried(scheduled)
        if untried and scheduled.failed is not None and await self._admission.leave_backend(scheduled.request.id):
            scheduled.failed.tried.clear()  # It has waited for a slot, and what has failed it may be well again.
            untried = self._untried(scheduled)
        return self._choose(scheduled, untried, self._admission.clock.now())

    def again(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        """Return where a request goes that has failed and holds a slot, or None if no backend may have it any more."""
        return self._choose(scheduled, self._untried(scheduled), now)

    def _choose(self, scheduled: ScheduledRequest, backends: Sequence[Backend], now: Micros) -> Place | None:
        fleet, request = self._fleet, scheduled.request
        if request.instances:
            backends = [backend for backend in backends if backend.index in request.instances]
        if not backends:
            return None
        shown = fleet.with_free_slots(backends) if fleet.prefers_free_slots else backends
        choice = self._router.choose(request, shown, now)
        scheduled.chosen_because = choice.reason
        backend = fleet.seats[choice.instance]
        if scheduled.asks_each:
            scheduled.may_be_elsewhere = bool(others_serving(fleet.backends, request.model, [*_tried(scheduled), backend]))
        return backend, None, False

    def _untried(self, scheduled: ScheduledRequest) -> Sequence[Backend]:
        """Return the backends that may have a request next. Backends may have come up or gone down since it was first sent."""
        untried, failed = self._others(scheduled), scheduled.failed
        if not untried and failed is not None and failed.may_be_sent_again and failed.tried:
            last = failed.tried[-1]
            return (last,) if last in self._willing(scheduled) else ()
        return untried


class ProgramPlacement(Placement):
    """The places of requests of programs, wherever these are decided on."""

    def on_failure(self, place: Place, failed: FailedAttempts) -> None:
        if not isinstance(failed.failure, UsageRefused | Withheld):
            failed.tried.append(place[0])

    def has_another(self, scheduled: ScheduledRequest) -> bool:
        failed = scheduled.failed
        return failed is None or not failed.is_busy or bool(self._others(scheduled))


class GrantedPlacement(ProgramPlacement):
    """The places of requests of programs, at the process that decides about programs.

    No program has memory at a half-open backend: single requests are sent there, and their programs stay where they are. A
    program keeps its place too, without its KV, where its backend fails a request and no other has room for all of it, or other
    requests of it are there. That request is sent to another backend all the same, where nothing is set aside for it: an
    engine that is short of memory for it preempts, which is better than an answer that is lost.
    `first` and `next` raise MemoryLost if the program has to wait for memory elsewhere, or gets none: the slot must be free
    then.
    """

    def __init__(
        self,
        fleet: FleetView,
        watch: FleetWatch,
        admission: RealTimeAdmission,
        memories: ProgramMemories,
        programs: RealTimePrograms,
    ) -> None:
        super().__init__(fleet, admission)
        self._watch = watch
        self._memories, self._programs = memories, programs

    def first(self, scheduled: ScheduledRequest, now: Micros) -> Place | None:
        lease, model = scheduled.memory_lease, scheduled.request.model
        asked: list[int] = []
        while lease is not None and lease.memory is not None:
            target = self._memories.target(lease.memory)
            instead = self._instead(scheduled, target.backend)
            if instead is not None:
                return instead
            takes = target.backend.takes(model)
            if takes and target.backend.circuit.rests_until is None:
                return target.backend, target.rank, False
            others = self._others(scheduled)
            if takes and not others:
                return None  # All rest (`Retry-After`), so the program stays where it is.
            asked.append(lease.memory)
            # The core knows nothing of rests, so it may choose a backend that rests, and then the first one again.
            if self._programs.move(lease) in asked:
                return _least_busy(others)
        raise MemoryLost

    async def next(self, scheduled: ScheduledRequest, place: Place) -> Place | None:
        failed, lease = scheduled.failed, scheduled.memory_lease
        assert failed is not None
        backend, rank, stands_in = place
        if lease is not None and not isinstance(failed.failure, UsageRefused):
            self._admission.set_stranded(scheduled.request.id, stranded=False)  # It keeps its slot, since it has its memory.
        if lease is not None and not (stands_in or isinstance(failed.failure, UsageRefused)):
            if failed.may_have_died:  # If so, all programs leave that backend, and this one need not wait for the others.
                await self._watch.poll_now(backend)
            memory = self._memories.index_of(backend, rank)
            stays = self._programs.move(lease) == memory
            # All connections to this backend carried requests for as long as may be waited.
            if stays and isinstance(failed.failure, PoolTimeout) and not self._others(scheduled):
                return None
        return self.first(scheduled, self._admission.clock.now())

    def _instead(self, scheduled: ScheduledRequest, target: Backend) -> Place | None:
        """Return the place that the request gets instead of `target`, where its program has memory, or None: at a half-open
        backend as its probe, or at the least busy of those that have not failed the request, if `target` has."""
        failed = scheduled.failed
        if failed is None:
            probed = self._fleet.ejection.backend_to_probe(scheduled.request.model)
            return None if probed is None else (probed, None, True)
        # If the target is down, its program moves first, and may wait for memory elsewhere.
        others = self._others(scheduled) if target in failed.tried and target.takes(scheduled.request.model) else ()
        return _least_busy(others)


def _num_sequences(backend: Backend) -> int:
    return backend.in_flight


def _least_busy(backends: Sequence[Backend]) -> Place | None:
    """Return the place at the least busy of `backends`, in place of a program's own, or None if there are none."""
    return (min(backends, key=_num_sequences), None, True) if backends else None


def _tried(scheduled: ScheduledRequest) -> Sequence[Backend]:
    return _NONE_TRIED if scheduled.failed is None else scheduled.failed.tried
