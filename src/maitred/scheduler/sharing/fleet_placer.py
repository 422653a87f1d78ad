"""FleetPlacer: where the requests of gateways in other processes go, and what the fleet is told of them there.

A request that holds a slot is placed as one of this process is (`RoutedPlacement`), and then has a stand-in at its backend
(`HostedAttempt`), so that routers, learned slots, ejection and the slots of backends that are down see it:

    place, arrive   FleetView.add_request
    first_byte      an answer of its backend that is no failure; a success, where the answer is not streamed
    on_outcome      what the gateway has found: a failure, no room, no connection
    leave           FleetView.remove_request; a success, if the answer has come whole
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.contracts import Router
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.served_models import ServedModel
from maitred.scheduler.failures import AnsweredError, BackendAbandoned, FailedAttempts, UsageRefused
from maitred.scheduler.link.failure_kinds import FailureKind, OutcomeKind
from maitred.scheduler.link.gateway_books import BookedRequest
from maitred.scheduler.link.messages import AttemptOutcome, Failed
from maitred.scheduler.link.placer import GoOn, LinkPlace, NoPlace, Placer
from maitred.scheduler.placements import GrantedPlacement, MemoryLost, Place, RoutedPlacement
from maitred.scheduler.sharing.hosted_attempts import HostedAttempt, HostedRequest
from maitred.wire.clock import Clock
from maitred.wire.errors import ConnectError, Disconnected, PoolTimeout, UpstreamError

_DRAINED: Final = ReleaseReason.DRAINED
_FAILED: Final = ReleaseReason.FAILED


class FleetPlacer(Placer):
    """Places requests in one fleet."""

    def __init__(
        self,
        fleet: FleetView,
        placement: RoutedPlacement,
        router: Router,
        clock: Clock,
        task: asyncio.Task[None],
        abandon: Callable[[BookedRequest], object],
        note_news: Callable[[], object],
        granted: GrantedPlacement | None = None,
    ) -> None:
        """`task` lasts as long as the placer. `abandon` has a request stopped at its backend, and `note_news` is called when
        gateways may have to be told of a backend. `granted` places the requests of agent programs, if there are any."""
        self._fleet, self._placement, self._router, self._clock = fleet, placement, router, clock
        self._task, self._abandon, self._note_news = task, abandon, note_news
        self._granted = granted
        self._moves: set[asyncio.Task[None]] = set()
        """What moves programs: a loop keeps no task alive."""
        self._attempts: dict[RequestId, HostedAttempt] = {}
        """The stand-in of each request that is at a backend, by the number of its ticket."""

    def place(self, request: BookedRequest, now: Micros) -> LinkPlace | NoPlace:
        served = self._fleet.find_model(request.terms.model)
        if served is None:
            return NoPlace.NO_BACKEND
        scheduled = self._scheduled(request, served)
        try:
            if self._granted is not None and scheduled.memory_lease is not None:
                place = self._granted.first(scheduled, now)
            elif request.tried:
                place = self._placement.again(scheduled, now)
            else:
                place = self._placement.first(scheduled, now)
        except MemoryLost:
            return NoPlace.MEMORY_LOST
        return self._take_place(request, place, now)

    def move(self, request: BookedRequest, then: GoOn) -> None:
        task = asyncio.get_running_loop().create_task(self._move(request, then))
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _move(self, request: BookedRequest, then: GoOn) -> None:
        """Let the program of a request move that its backend has failed, of which it may be asked first how it is."""
        served, place, granted = self._fleet.find_model(request.terms.model), request.place, self._granted
        moved: Place | None = None
        lost: NoPlace | None = None
        if served is not None and place is not None and granted is not None:
            try:
                moved = await granted.next(self._scheduled(request, served), place)
            except MemoryLost:
                lost = NoPlace.MEMORY_LOST
        then(lambda now: self._take_place(request, moved, now) if lost is None else lost, self._clock.now())
        self._note_news()

    def _scheduled(self, request: BookedRequest, served: ServedModel) -> HostedRequest:
        lease = None if request.memory is None else request.memory.lease
        failed = self._failed_attempts(request) if request.failure is not None else None
        return HostedRequest(request.request, served, lease, failed)

    def _take_place(self, request: BookedRequest, place: Place | None, now: Micros) -> LinkPlace | NoPlace:
        if place is None:
            return NoPlace.NO_BACKEND
        request.place = place
        self._begin(request, place[0], now)
        return place[0].index, place[1]

    def arrive(self, request: BookedRequest, now: Micros) -> None:
        if request.backend < len(self._fleet.seats):
            backend = self._fleet.seats[request.backend]
            request.place = backend, None, False
            self._begin(request, backend, now)

    def leave(self, request: BookedRequest, end: ReleaseReason, now: Micros) -> None:
        attempt = self._attempts.pop(request.ticket.id, None)
        if attempt is None:
            return
        attempt.is_complete, attempt.has_failed = end is _DRAINED, end is _FAILED
        backend = attempt.backend
        if attempt.is_complete and backend.circuit.needs_attention and request.terms.stream:
            self._fleet.ejection.on_success(attempt)
        self._fleet.remove_request(attempt, now)
        if request.memory is None:
            self._router.on_request_end(request.request, backend.index, now)

    def first_byte(self, request: BookedRequest, now: Micros) -> None:
        attempt = self._attempts.get(request.ticket.id)
        if attempt is None:
            return
        circuit = attempt.backend.circuit
        if not attempt.has_failed:  # Else an error is passed on, for want of a better answer.
            circuit.num_answers += 1
            if circuit.needs_attention and request.terms.stream:
                self._fleet.ejection.on_answer_begins(attempt)
            elif circuit.needs_attention:
                self._fleet.ejection.on_success(attempt)
        attempt.backend.first_data_times.observe(now - attempt.sent_at)
        attempt.begin_answer(now)
        if request.memory is not None and request.memory.lease is not None:
            request.memory.lease.first_data_at = now

    def on_outcome(self, request: BookedRequest | None, outcome: AttemptOutcome, now: Micros) -> None:
        if not 0 <= outcome.backend < len(self._fleet.seats):
            return
        backend = self._fleet.seats[outcome.backend]
        attempt = None if request is None else self._attempts.get(request.ticket.id)
        if attempt is None or attempt.backend is not backend:
            attempt = HostedAttempt(backend, Request(id=-1, arrival=now, prompt_tokens=0), self._task, now, _ignore)
        match outcome.kind:
            case OutcomeKind.FAILURE:
                attempt.has_failed = True
                self._fleet.ejection.on_failure(attempt, outcome.words)
            case OutcomeKind.BUSY:
                self._fleet.ejection.on_busy(attempt)
            case OutcomeKind.REST:
                self._fleet.ejection.rest(backend, outcome.rest)
            case OutcomeKind.UNREACHABLE:
                self._fleet.note_unreachable(attempt, _connect_error(outcome))
        self._note_news()

    def progress(self, request: BookedRequest, pieces: int, now: Micros) -> None:
        attempt = self._attempts.get(request.ticket.id)
        if attempt is not None:
            attempt.note_pieces(pieces, now)

    def _begin(self, request: BookedRequest, backend: Backend, now: Micros) -> None:
        attempt = HostedAttempt(backend, request.request, self._task, now, lambda: self._abandon(request))
        self._attempts[request.ticket.id] = attempt
        self._fleet.add_request(attempt, now)

    def _failed_attempts(self, request: BookedRequest) -> FailedAttempts:
        failed = FailedAttempts()
        failed.tried = [self._fleet.seats[index] for index in request.tried]
        if request.failure is not None:
            failed.failure = _failure_of(request.failure)
        return failed


def _failure_of(told: Failed) -> UpstreamError:
    """Return the failure that a gateway has told of, as far as placements go by it."""
    match told.kind:
        case FailureKind.ANSWERED | FailureKind.BUSY:
            return AnsweredError(told.reason, is_busy=told.kind is FailureKind.BUSY, retry_after=None)
        case FailureKind.BROKEN:
            return Disconnected(told.reason)
        case FailureKind.NO_CONNECTION:
            return PoolTimeout(told.reason)
        case FailureKind.ABANDONED:
            return BackendAbandoned(told.reason)
        case FailureKind.USAGE_REFUSED:
            return UsageRefused(told.reason)
        case _:
            return UpstreamError(told.reason)


def _connect_error(outcome: AttemptOutcome) -> ConnectError:
    error = ConnectError(outcome.words)
    if outcome.is_refusal:
        error.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, outcome.words)
    return error


def _ignore() -> None:
    pass
