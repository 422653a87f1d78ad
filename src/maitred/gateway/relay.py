"""Send an admitted request on, and its answer back.

While nothing of an answer has been shown, a backend that fails can be replaced by the next one: by any number of those that
could not be reached, but only by few that had the request, since it may be the request that brings them down. From there on the
answer belongs to the client piece by piece, and if it breaks off, so must the client's connection: an answer cut short must not
look whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from maitred.admission import End
from maitred.contracts import Router
from maitred.gateway import refusals
from maitred.gateway.answer import Answer
from maitred.gateway.call import Call
from maitred.gateway.config import GatewayConfig
from maitred.gateway.counts import Counts
from maitred.gateway.driver import Driver
from maitred.gateway.fleet import Backend, Fleet
from maitred.wire.asgi import Departure, Send
from maitred.wire.client import Client
from maitred.wire.failures import ConnectError, Disconnected, Truncated, UpstreamError
from maitred.wire.response import Response


class Abandoned(UpstreamError):  # noqa: N818
    """The upstream was declared down before its answer began."""

    reason = "abandoned"


REPLACEABLE = (Disconnected, Truncated, Abandoned)
"""The failures of a backend that had the request after which another is tried. After a timeout it would only be kept busy as
well."""


class Relay:
    def __init__(
        self, config: GatewayConfig, client: Client, fleet: Fleet, router: Router, driver: Driver, counts: Counts
    ) -> None:
        self._config = config
        self._client = client
        self._fleet = fleet
        self._router = router
        self._driver = driver
        self._counts = counts

    async def serve(self, call: Call, send: Send, departure: Departure) -> End:
        """Until the answer has been handed to the client whole (DRAINED), or broke off after it had begun (FAILED: the caller
        must cut the connection). Raises ApiError when there is none, and nothing has been sent."""
        untried: Sequence[Backend] = self._fleet.serving(call.request.model)
        tried: list[Backend] = []
        failure: UpstreamError | None = None
        attempts = 0
        while untried:
            if failure is not None:
                self._counts.retries += 1
            choice = self._router.choose(call.request, untried, self._driver.now())
            backend = self._fleet.backends[choice.instance]
            try:
                return await self._through(backend, call, send, departure)
            except UpstreamError as error:
                failure = self._failed(backend, error)
            attempts += not isinstance(failure, ConnectError)
            if attempts == self._config.max_attempts or not isinstance(failure, (ConnectError, *REPLACEABLE)):
                break
            tried.append(backend)
            untried = [other for other in self._fleet.serving(call.request.model) if other not in tried]
        raise refusals.unanswered(failure)

    async def _through(self, backend: Backend, call: Call, send: Send, departure: Departure) -> End:
        """Raises UpstreamError only while nothing has been sent, and ApiError when nothing may be."""
        flight = self._fleet.sent(backend, call.request.model)
        response: Response | None = None
        try:
            response = await self._client.request(backend.origin, "POST", call.path, call.headers, call.body)
            answer = Answer(call, response, send, departure, self._config.sse_keepalive_secs)
            await answer.open()
            flight.shown = True
            if call.route.needs_slot and not self._driver.first_byte(call.request.id):
                raise refusals.preempted()
            return await self._deliver(answer, backend, call, response)
        except asyncio.CancelledError:
            if not flight.taken():
                raise
            raise Abandoned(f"{backend.url} is down: {backend.problem}") from None
        finally:
            if response is not None:
                response.close()
            self._fleet.ended(flight)
            self._router.left(call.request, backend.index, self._driver.now())

    async def _deliver(self, answer: Answer, backend: Backend, call: Call, response: Response) -> End:
        def first_data() -> None:
            if call.request.stream and response.status == 200:
                waited = self._driver.now() - call.request.arrival
                self._counts.ttft[call.request.priority_class].observe(waited)

        try:
            await answer.deliver(first_data)
        except UpstreamError as error:
            self._failed(backend, error)
            return End.FAILED
        return End.DRAINED

    def _failed(self, backend: Backend, error: UpstreamError) -> UpstreamError:
        self._counts.upstream_failures[error.reason] += 1
        if isinstance(error, ConnectError):
            self._fleet.down(backend, str(error))
        return error
