"""One answer of a backend on its way to the client.

Its head is withheld until the first data of its body: comments that only keep a stream alive do not count. Up to there the
client has been shown nothing, and the request can be moved to another backend, tried again, or preempted.

If a keep-alive is configured and a stream has begun but says nothing for that long, the head goes out with a comment of ours.
That is a first byte like any other. Later silences are filled in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from maitred.gateway.call import Call
from maitred.gateway.intake import REQUEST_ID, end_to_end
from maitred.gateway.keepalive import COMMENT, Heartbeat, leaves_room
from maitred.wire import sse
from maitred.wire.asgi import Departure, Headers, Message, Send, send_now
from maitred.wire.response import Response

WITHHELD_BYTES = 16_384
"""Of comments before the first data of a stream; with more of them the head goes out anyway."""


class Answer:
    """`open` it, and if it may be shown, `deliver` it."""

    __slots__ = ("_call", "_departure", "_is_stream", "_keepalive_secs", "_opened", "_opening", "_response", "_send")

    def __init__(self, call: Call, response: Response, send: Send, departure: Departure, keepalive_secs: float) -> None:
        """`keepalive_secs` in seconds; 0: never."""
        self._call = call
        self._response = response
        self._send = send
        self._departure = departure
        self._is_stream = call.request.stream and _is_events(response.headers)
        comments = keepalive_secs and self._is_stream and leaves_room(response.headers)
        self._keepalive_secs = keepalive_secs if comments else 0.0
        self._opening = b""
        self._opened = False

    async def open(self) -> None:
        """Until there is something to show. Raises UpstreamError."""
        if not self._is_stream:
            self._opening = await self._response.read()
            self._opened = True
        elif not self._keepalive_secs:
            await self._data()
        else:
            try:
                async with asyncio.timeout(self._keepalive_secs):
                    await self._data()
            except TimeoutError:
                return

    async def deliver(self, first_data: Callable[[], None]) -> None:
        """All of it. `first_data` is called as the first data goes out. Raises UpstreamError when it breaks off."""
        if not self._keepalive_secs:
            await self._deliver(first_data)
            return
        heartbeat = Heartbeat(self._send, self._keepalive_secs)
        self._send = heartbeat.send
        try:
            await self._deliver(first_data)
        finally:
            heartbeat.stop()

    async def _deliver(self, first_data: Callable[[], None]) -> None:
        if self._opened:
            first_data()
            await self._head()
        else:
            await self._head()
            await self._body(COMMENT, more=True)
            await self._data()
            first_data()
        whole = self._response.complete
        await self._body(self._opening, more=not whole)
        if not whole:
            await self._rest()

    async def _data(self) -> None:
        """What has come of the body when there is something to show; all of it, if there is nothing at all."""
        response = self._response
        while not (response.complete or sse.has_data(self._opening) or len(self._opening) >= WITHHELD_BYTES):
            self._opening += await response.read()
        self._opened = True

    async def _head(self) -> None:
        response = self._response
        headers = end_to_end(response.headers)
        if response.status in (204, 304):  # have no body, whatever they say of its length
            headers = [header for header in headers if header[0] != b"content-length"]
        _identify(headers, self._call.request_id)
        self._call.answered = True
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _body(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _rest(self) -> None:
        """Write it through as it comes."""
        send, departure = self._send, self._departure

        async def send_last(message: Message) -> None:
            await send(message)
            departure.stop()  # what ASGI says after the end of a response is no departure

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            message = {"type": "http.response.body", "body": piece, "more_body": more}
            return send_now(send if more else send_last, message)

        await self._response.pipe(write)


def _is_events(headers: Headers) -> bool:
    return any(name == b"content-type" and value.lower().startswith(sse.CONTENT_TYPE) for name, value in headers)


def _identify(headers: Headers, request_id: bytes) -> None:
    """Unless the backend did."""
    if not any(name == REQUEST_ID for name, _ in headers):
        headers.append((REQUEST_ID, request_id))
