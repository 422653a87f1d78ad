"""An attempt: a request at one backend, from its sending until the backend has no more to do with it.

It is entered and left once (`with`), and then nothing of it is left: the fleet does not count the request any more, the
response is closed, the router knows of its end. A failure of the backend is counted on the way out. So is an abandonment, which
leaves as the failure that it is (BackendAbandoned). Compiled (`tools/compile.py`).
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
from maitred.wire.clock import Clock
from maitred.wire.errors import UpstreamError
from maitred.wire.response import UpstreamResponse


class Attempt:
    """One of a request. `response` is set when it has come."""

    def __init__(
        self,
        fleet: FleetView,
        outcomes: AttemptOutcomes,
        router: Router | None,
        backend: Backend,
        proxied: ProxyRequest,
        now: Micros,
        clock: Clock,
    ) -> None:
        """The request is sent to `backend` at `now`. `router` is told of the end; None: it has not chosen the backend."""
        self._fleet, self._outcomes, self._router, self._proxied, self._clock = fleet, outcomes, router, proxied, clock
        self.response: UpstreamResponse | None = None
        self.sent = sent = UpstreamRequest(backend, proxied.request, proxied.task)
        fleet.add_request(sent, now)
        sent.record = record = proxied.record
        record.on_sent(backend, now, None if sent.own is None else sent.note_events)

    def __enter__(self) -> Attempt:
        return self

    def hold(self, forwarder: ResponseForwarder) -> HeldAnswer:
        """Return an answer that another backend may better. It stays open until it is closed."""
        response, self.response = self.response, None
        assert response is not None
        return HeldAnswer(self.sent, forwarder, response, self._clock.wall())

    def _count(self, error: BaseException) -> None:
        """Count a failure of the backend. Raises BackendAbandoned for the cancellation that is one."""
        sent = self.sent
        if isinstance(error, asyncio.CancelledError):
            if sent.catch():
                raise self._outcomes.on_abandoned(sent) from None
        elif isinstance(error, UpstreamError):
            sent.has_failed = True
            self._outcomes.on_failure(sent, error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the backend, however the attempt has ended."""
        sent = self.sent
        try:
            if error is not None:
                self._count(error)
        finally:
            if self.response is not None:  # If it is not complete, this closes the connection: the engine stops working on it.
                self.response.close()
            ended_at = self._proxied.record.ended_at or self._clock.now()
            self._fleet.remove_request(sent, ended_at)
            if self._router is not None:
                self._router.on_request_end(self._proxied.request, sent.backend.index, ended_at)
