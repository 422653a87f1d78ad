"""Keep a client's connection alive while its stream says nothing: a comment for every so many seconds of silence.

A comment is one only between two events. So what passes is followed by its last bytes, and in the middle of an event, where an
upstream may well fall silent, nothing is sent. Nor is it to a client that has not taken what it was sent before.

One answer of a backend on its way to the client.

Its head is withheld until the first data of its body: comments that only keep a stream alive do not count. Up to there the
client has been shown nothing, and the request can be moved to another backend, tried again, or preempted.

If a keep-alive is configured and a stream has begun but says nothing for that long, the head goes out with a comment of ours.
That is a first byte like any other. Later silences are filled in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from maitred.gateway.request_fields import REQUEST_ID_HEADER, end_to_end_headers
from maitred.gateway.request_intake import ProxyRequest
from maitred.wire import sse
from maitred.wire.asgi import DisconnectWatcher, Headers, Message, Send, send_eagerly
from maitred.wire.response import UpstreamResponse

KEEPALIVE_COMMENT: Final = b": keepalive\n\n"
"""Clients of server-sent events skip it."""
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_MAX_EVENT_END_BYTES: Final = 4
_HEADERS_FIXING_BODY: Final = frozenset((b"content-length", b"content-encoding"))


def allows_comments(headers: Headers) -> bool:
    """Whether comments can be put into a body with this head: not where its length is given, or its bytes are encoded."""
    return not any(name in _HEADERS_FIXING_BODY for name, _ in headers)


class SseKeepalive:
    """Put between an answer and its `send`. It begins with the head, and must be stopped."""

    def __init__(self, send: Send, secs: float) -> None:
        """`secs` of silence, more than 0."""
        self._send = send
        self._secs = secs
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_sent = 0.0
        self._tail = b"\n\n"
        self._is_sending = False
        self._comment: asyncio.Future[None] | None = None

    async def send(self, message: Message) -> None:
        """Hand it on."""
        if message["type"] == "http.response.start":
            self._timer = self._loop.call_later(self._secs, self._on_timer)
        elif not message["more_body"]:
            self.stop()
        else:
            self._tail = (self._tail + message["body"][-_MAX_EVENT_END_BYTES:])[-_MAX_EVENT_END_BYTES:]
        self._is_sending = True
        await self._send(message)
        self._is_sending = False
        self._last_sent = self._loop.time()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        left = self._last_sent + self._secs - self._loop.time()
        if left <= 0:
            self._send_comment()
            left = self._secs
        self._timer = self._loop.call_later(left, self._on_timer)

    def _send_comment(self) -> None:
        taken = not self._is_sending and (self._comment is None or self._comment.done())
        if taken and self._tail.endswith(_EVENT_ENDS):
            self._last_sent = self._loop.time()
            self._comment = send_eagerly(
                self._send, {"type": "http.response.body", "body": KEEPALIVE_COMMENT, "more_body": True}
            )


MAX_WITHHELD_BYTES = 16_384
"""Of comments before the first data of a stream; with more of them the head goes out anyway."""


class ResponseForwarder:
    """`open` it, and if it may be shown, `deliver` it."""

    __slots__ = ("_call", "_disconnect", "_has_data", "_is_stream", "_keepalive_secs", "_response", "_send", "_withheld")

    def __init__(
        self, call: ProxyRequest, response: UpstreamResponse, send: Send, departure: DisconnectWatcher, keepalive_secs: float
    ) -> None:
        """`keepalive_secs` in seconds; 0: never."""
        self._call = call
        self._response = response
        self._send = send
        self._disconnect = departure
        self._is_stream = call.request.stream and _is_event_stream(response.headers)
        comments = keepalive_secs and self._is_stream and allows_comments(response.headers)
        self._keepalive_secs = keepalive_secs if comments else 0.0
        self._withheld = b""
        self._has_data = False

    async def wait_for_data(self) -> None:
        """Until there is something to show. Raises UpstreamError."""
        if not self._is_stream:
            self._withheld = await self._response.read_piece()
            self._has_data = True
        elif not self._keepalive_secs:
            await self._read_until_data()
        else:
            try:
                async with asyncio.timeout(self._keepalive_secs):
                    await self._read_until_data()
            except TimeoutError:
                return

    async def forward(self, on_first_data: Callable[[], None]) -> None:
        """All of it. `first_data` is called as the first data goes out. Raises UpstreamError when it breaks off."""
        if not self._keepalive_secs:
            await self._forward(on_first_data)
            return
        heartbeat = SseKeepalive(self._send, self._keepalive_secs)
        self._send = heartbeat.send
        try:
            await self._forward(on_first_data)
        finally:
            heartbeat.stop()

    async def _forward(self, on_first_data: Callable[[], None]) -> None:
        if self._has_data:
            on_first_data()
            await self._send_head()
        else:
            await self._send_head()
            await self._send_body(KEEPALIVE_COMMENT, more=True)
            await self._read_until_data()
            on_first_data()
        whole = self._response.is_complete
        await self._send_body(self._withheld, more=not whole)
        if not whole:
            await self._pipe_rest()

    async def _read_until_data(self) -> None:
        """What has come of the body when there is something to show; all of it, if there is nothing at all."""
        response = self._response
        while not (response.is_complete or sse.has_data(self._withheld) or len(self._withheld) >= MAX_WITHHELD_BYTES):
            self._withheld += await response.read_piece()
        self._has_data = True

    async def _send_head(self) -> None:
        response = self._response
        headers = end_to_end_headers(response.headers)
        if response.status in (204, 304):  # have no body, whatever they say of its length
            headers = [header for header in headers if header[0] != b"content-length"]
        _add_request_id(headers, self._call.request_id)
        self._call.response_started = True
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _send_body(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _pipe_rest(self) -> None:
        """Write it through as it comes."""
        send, departure = self._send, self._disconnect

        async def send_last(message: Message) -> None:
            await send(message)
            departure.stop()  # what ASGI says after the end of a response is no departure

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            message = {"type": "http.response.body", "body": piece, "more_body": more}
            return send_eagerly(send if more else send_last, message)

        await self._response.pipe_body(write)


def _is_event_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.lower().startswith(sse.EVENT_STREAM_TYPE) for name, value in headers)


def _add_request_id(headers: Headers, request_id: bytes) -> None:
    """Unless the backend did."""
    if not any(name == REQUEST_ID_HEADER for name, _ in headers):
        headers.append((REQUEST_ID_HEADER, request_id))
