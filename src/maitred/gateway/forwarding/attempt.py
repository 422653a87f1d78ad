"""An attempt: a request at one backend, from its sending until the backend has no more to do with it.

It is made and left once, and then nothing of it is left: the fleet does not count the request any more, the response is closed,
the router knows of its end. An error on the way out passes through `fail`, which counts a failure of the backend, and an
abandonment as one: that leaves as the failure that it is (BackendAbandoned). Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from maitred.core.contracts import Router
from maitred.core.units import Micros
from maitred.gateway.forwarding.attempt_outcomes import AttemptOutcomes
from maitred.gateway.forwarding.held_answer import HeldAnswer
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.gateway.forwarding.response_forwarder import ResponseForwarder
from maitred.scheduler.interface import Backend, FleetView, UpstreamRequest
from maitred.wire.errors import UpstreamError
from maitred.wire.response import UpstreamResponse


class Attempt(UpstreamRequest):
    """One of a request. `response` is set when it has come."""

    _has_told_trace = False

    def __init__(
        self,
        fleet: FleetView,
        outcomes: AttemptOutcomes,
        router: Router | None,
        backend: Backend,
        proxied: ProxyRequest,
        now: Micros,
    ) -> None:
        """The request is sent to `backend` at `now`. `router` is told of the end; None: it has not chosen the backend."""
        UpstreamRequest.__init__(self, backend, proxied.request, proxied.task)  # super() would be an object and two look-ups
        self._fleet, self._outcomes, self._router = fleet, outcomes, router
        self.response: UpstreamResponse | None = None
        fleet.add_request(self, now)
        self._of_request = self.record = record = proxied.record
        record.on_sent(backend, now, None if self.own is None else self.note_events)

    def __enter__(self) -> Attempt:
        return self

    def hold(self, forwarder: ResponseForwarder) -> HeldAnswer:
        """Return an answer that another backend may better. It stays open until it is closed."""
        response, self.response = self.response, None
        assert response is not None
        return HeldAnswer(self, forwarder, response, self._of_request.clock.wall())

    def fail(self, error: BaseException) -> None:
        """Count a failure of the backend. Raises BackendAbandoned for the cancellation that is one. `leave` is next."""
        self._tell_trace(error)
        if isinstance(error, asyncio.CancelledError):
            if self.catch():
                raise self._outcomes.on_abandoned(self) from None
        elif isinstance(error, UpstreamError):
            self.has_failed = True
            self._outcomes.on_failure(self, error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is not None:
                self.fail(error)
        finally:
            self.leave()

    def leave(self) -> None:
        """Leave the backend, however the attempt has ended."""
        record = self._of_request
        if record.trace is not None and not self._has_told_trace:
            self._tell_trace(None)
        if self.response is not None:  # If it is not complete, this closes the connection: the engine stops working on it.
            self.response.close()
        ended_at = record.ended_at or record.clock.now()
        self._fleet.remove_request(self, ended_at)
        if self._router is not None:
            self._router.on_request_end(self.request, self.backend.index, ended_at)

    def _tell_trace(self, error: BaseException | None) -> None:
        record = self._of_request
        if record.trace is not None:
            self._has_told_trace = True
            record.trace.on_attempt_end(record.clock.now(), None if self.response is None else self.response.status, error)
