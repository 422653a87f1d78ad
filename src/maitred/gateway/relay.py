"""Send an admitted request on, and its answer back.

The head of the answer is withheld until the first data of its body: comments that only keep a stream alive do not count. Up to
there nothing has been shown, so a backend that fails can be replaced by the next one: by any number of those that could not be
reached, but only by few that had the request, since it may be the request that brings them down. From there on the answer
belongs to the client piece by piece, and if it breaks off, so must the client's connection: an answer cut short must not look
whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from maitred.admission import End
from maitred.contracts import Router
from maitred.gateway import refusals
from maitred.gateway.config import GatewayConfig
from maitred.gateway.driver import Driver
from maitred.gateway.fleet import Backend, Fleet
from maitred.gateway.intake import REQUEST_ID, end_to_end
from maitred.gateway.metrics import Counts
from maitred.request import Request
from maitred.wire import sse
from maitred.wire.asgi import Departure, Headers, Message, Send, send_now
from maitred.wire.client import Client
from maitred.wire.failures import ConnectError, Disconnected, Truncated, UpstreamError
from maitred.wire.response import Response

WITHHELD_BYTES = 16_384
"""Of comments before the first data of a stream; with more of them the head goes out anyway."""


class Abandoned(UpstreamError):  # noqa: N818
    """The upstream was declared down before its answer began."""

    reason = "abandoned"


REPLACEABLE = (Disconnected, Truncated, Abandoned)
"""The failures of a backend that had the request after which another is tried. After a timeout it would only be kept busy as
well."""


class Call:
    """One request on its way through the gateway."""

    __slots__ = ("answered", "body", "headers", "path", "request", "request_id")

    def __init__(self, request: Request, path: str, headers: Headers, body: bytes, request_id: bytes) -> None:
        self.request = request
        self.path = path
        self.headers = headers
        """For the backend, complete."""
        self.body = body
        self.request_id = request_id
        self.answered = False
        """Whether the head of an answer has gone out."""


class Relay:
    def __init__(
        self, config: GatewayConfig, client: Client, fleet: Fleet, router: Router, driver: Driver, counts: Counts
    ) -> None:
        self._max_attempts = config.max_attempts
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
            if attempts == self._max_attempts or not isinstance(failure, (ConnectError, *REPLACEABLE)):
                break
            tried.append(backend)
            untried = [other for other in self._fleet.serving(call.request.model) if other not in tried]
        raise refusals.unanswered(failure)

    async def _through(self, backend: Backend, call: Call, send: Send, departure: Departure) -> End:
        """Raises UpstreamError only while nothing has been sent."""
        flight = self._fleet.sent(backend, call.request.model)
        response: Response | None = None
        try:
            response = await self._client.request(backend.origin, "POST", call.path, call.headers, call.body)
            piece = await (_first_data(response) if call.request.stream else response.read())
            flight.shown = True
            if not self._driver.first_byte(call.request.id):
                raise refusals.preempted()
            if await self._begin(call, response, piece, send):
                return End.DRAINED
            return await self._finish(backend, response, send, departure)
        except asyncio.CancelledError:
            if not flight.taken():
                raise
            raise Abandoned(f"{backend.url} is down: {backend.problem}") from None
        finally:
            if response is not None:
                response.close()
            self._fleet.ended(flight)
            self._router.left(call.request, backend.index, self._driver.now())

    async def _begin(self, call: Call, response: Response, piece: bytes, send: Send) -> bool:
        """Send the head and the first piece. Whether that was all."""
        if call.request.stream and response.status == 200:
            waited = self._driver.now() - call.request.arrival
            self._counts.ttft[call.request.priority_class].observe(waited)
        headers = end_to_end(response.headers)
        if response.status in (204, 304):  # have no body, whatever they say of its length
            headers = [header for header in headers if header[0] != b"content-length"]
        for name, _ in headers:
            if name == REQUEST_ID:
                break
        else:
            headers.append((REQUEST_ID, call.request_id))
        whole = response.complete
        call.answered = True
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": piece, "more_body": not whole})
        return whole

    async def _finish(self, backend: Backend, response: Response, send: Send, departure: Departure) -> End:
        """Write the rest through as it comes."""

        async def send_last(message: Message) -> None:
            await send(message)
            departure.stop()  # what ASGI says after the end of a response is no departure

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            message = {"type": "http.response.body", "body": piece, "more_body": more}
            return send_now(send if more else send_last, message)

        try:
            await response.pipe(write)
        except UpstreamError as error:
            self._failed(backend, error)
            return End.FAILED
        return End.DRAINED

    def _failed(self, backend: Backend, error: UpstreamError) -> UpstreamError:
        self._counts.upstream_failures[error.reason] += 1
        if isinstance(error, ConnectError):
            self._fleet.down(backend, str(error))
        return error


async def _first_data(response: Response) -> bytes:
    """What has come of the body when there is something to show; all of it, if there is nothing at all."""
    piece = await response.read()
    if not any(name == b"content-type" and value.startswith(sse.CONTENT_TYPE) for name, value in response.headers):
        return piece
    while not response.complete and not sse.has_data(piece) and len(piece) < WITHHELD_BYTES:
        piece += await response.read()
    return piece
