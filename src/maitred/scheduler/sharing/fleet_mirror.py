"""The fleet at a gateway whose scheduler is another process: it is told how backends are, and reports what attempts come to.

FleetMirror         in place of the polls (`FleetWatch`): takes over what the scheduler says of all backends
ReportedEjection    in place of what ejects backends: tells the scheduler of failures, and goes by what that says of circuits
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend, UpstreamRequest
from maitred.scheduler.backends.ejection_driver import RealTimeEjection
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.ejection import CircuitState, EjectionConfig
from maitred.scheduler.link.failure_kinds import OutcomeKind
from maitred.scheduler.link.messages import AttemptOutcome, Fleet
from maitred.scheduler.link.terms import BackendNews
from maitred.wire.clock import Clock
from maitred.wire.errors import ConnectError


class ReportedEjection(RealTimeEjection):
    """Reports what attempts come to. Its circuits are as the scheduler has told."""

    def __init__(
        self,
        config: EjectionConfig,
        backends: Sequence[Backend],
        clock: Clock,
        report: Callable[[AttemptOutcome], object],
        number_of: Callable[[int], int],
    ) -> None:
        """`report` tells the scheduler, and `number_of` returns the number of a request on the link."""
        super().__init__(config, backends, _ignore, clock)
        self._report, self._number_of = report, number_of

    def take_over(self, told: Sequence[BackendNews], now: Micros) -> None:
        """Set the circuits of these backends."""
        for news in told:
            circuit = self.detector.circuits[news.number]
            circuit.state = CircuitState.EJECTED if news.is_ejected else CircuitState.CLOSED
            circuit.rests_until = None if news.rests is None else now + news.rests
        self.is_restricted = any(circuit.rests_until is not None for circuit in self.detector.circuits)

    def last_resort(self, model: str, tried: Sequence[Backend]) -> Sequence[Backend]:
        return [b for b in self._backends if b.circuit.is_ejected and b.serves(model) and b not in tried]

    def on_answer_begins(self, sent: UpstreamRequest) -> None:
        pass

    def on_success(self, sent: UpstreamRequest) -> None:
        pass

    def on_failure(self, sent: UpstreamRequest, problem: str) -> None:
        self._tell(sent, OutcomeKind.FAILURE, problem)

    def on_busy(self, sent: UpstreamRequest) -> None:
        self._tell(sent, OutcomeKind.BUSY)

    def rest(self, backend: Backend, span: Micros) -> None:
        self._report(AttemptOutcome(backend.index, OutcomeKind.REST, rest=span))

    def on_unreachable(self, sent: UpstreamRequest, error: ConnectError) -> None:
        """No connection could be made for a request."""
        number = self._number_of(sent.request.id)
        outcome = AttemptOutcome(sent.backend.index, OutcomeKind.UNREACHABLE, number, str(error), is_refusal=error.is_refusal)
        self._report(outcome)

    def _tell(self, sent: UpstreamRequest, kind: OutcomeKind, problem: str = "") -> None:
        self._report(AttemptOutcome(sent.backend.index, kind, self._number_of(sent.request.id), problem))


class FleetMirror:
    """What tells the fleet of a gateway how backends are."""

    kv_interval_secs: float | None = None
    """KV memory is not read."""

    def __init__(self, fleet: FleetView, ejection: ReportedEjection, clock: Clock) -> None:
        self._fleet, self._ejection, self._clock = fleet, ejection, clock
        fleet.ejection, fleet.on_unreachable, fleet.is_told = ejection, ejection.on_unreachable, False
        self.urls = [backend.url for backend in fleet.seats]
        """The backends as last told, by number."""
        self._begun: list[BackendNews] | None = None
        """What has come of a message of several parts."""
        self._knows_all = False
        """Whether all backends were told of on this connection."""
        self._is_told = asyncio.Event()

    def on_opened(self) -> None:
        """Note that there is another connection, on which all backends will be told of."""
        self._knows_all, self._begun = False, None

    def take_over(self, told: Fleet) -> None:
        """Take over what the scheduler says of backends that have changed, and which there are. Raises ValueError for a number
        or a URL that makes no sense."""
        if told.is_anew:
            self._begun = []
        if self._begun is not None:
            self._begun += told.backends
            if not told.has_more:
                begun, self._begun = self._begun, None
                self._take_over(begun, [])
                self._knows_all = True
        elif self._knows_all:  # A change that comes before may be of a backend that is not known here.
            self._take_over(told.backends, [*self.urls])

    def _take_over(self, told: Sequence[BackendNews], urls: list[str]) -> None:
        """Take over the news of backends, of which the others have these URLs."""
        for news in sorted(told, key=_number_of):
            if not 0 <= news.number <= len(urls):
                raise ValueError(f"there is no backend {news.number}")
            urls[news.number : news.number + 1] = [news.url]
        if urls != self.urls:
            self._fleet.reseat(urls)
            self.urls = urls
        self._ejection.take_over(told, self._clock.now())
        for news in told:
            backend = self._fleet.seats[news.number]
            backend.healthy, backend.was_ever_healthy = news.healthy, news.was_ever_healthy
            backend.has_been_polled, backend.is_draining = news.has_been_polled, news.is_draining
            backend.problem, backend.models = news.problem, msgspec.json.decode(news.models)
        self._fleet.update_serving()
        self._fleet.is_told = True
        if self._fleet.all_polled:
            self._is_told.set()

    def start(self) -> None:
        """Do nothing: the scheduler polls."""

    async def close(self) -> None:
        """Do nothing."""

    def reconfigure(self, config: FleetConfig) -> None:
        """Do nothing: the scheduler has the keys of polls."""

    async def wait_until_polled(self, secs: float) -> None:
        """Return when the scheduler has told of all backends, or after `secs`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await self._is_told.wait()


def _number_of(news: BackendNews) -> int:
    return news.number


def _ignore() -> None:
    pass
