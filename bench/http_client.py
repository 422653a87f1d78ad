"""A cheap HTTP client that checks every response, and may disconnect: one connection, one request at a time.

The length of each response body is known beforehand, so a response that was cut short cannot pass for a whole one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One request, and when its client disconnects."""

    raw: bytes
    body_bytes: int
    """Size of the body of a whole response."""
    leave_after_secs: float | None = None
    """Seconds after which the client disconnects; None: it waits for the response."""
    leave_after_bytes: int | None = None
    """Bytes of the body after which the client disconnects; None: it reads all of it."""


@dataclass(slots=True)
class ClientResponse:
    """What the client has received. Times are seconds since the request was sent."""

    status: int = 0
    """0 if no head has arrived."""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    """Bytes of the body that have arrived."""
    error: bytes = b""
    """The body, if the status is not 200."""
    left: bool = False
    """Whether the client disconnected before the response was complete."""
    complete: bool = False
    """Whether the response ended as HTTP says it must."""
    first_byte: float = 0.0
    took: float = 0.0

    @property
    def code(self) -> str:
        """The code of the error object; "" if the body is none."""
        try:
            return str(json.loads(self.error)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return ""


async def connect(url: str) -> Connection:
    """Connect to the server at `url`. Raises OSError."""
    parts = urlsplit(url)
    return (await asyncio.get_running_loop().create_connection(Connection, parts.hostname or "", parts.port or 80))[1]


def encode_request(path: str, body: bytes, **headers: str) -> bytes:
    """Return the bytes of a POST request."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{named}\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One connection. Call `send_request` while it is `open` and no response is awaited."""

    def __init__(self) -> None:
        self.open = False
        self._on_response: Callable[[ClientResponse], None] | None = None
        self._disconnect_timer: asyncio.TimerHandle | None = None

    def send_request(self, request: ClientRequest, on_response: Callable[[ClientResponse], None]) -> None:
        """Send `request`; `on_response` is called once, when it has ended in any way."""
        self._request, self._on_response, self._response = request, on_response, ClientResponse()
        self._parser = httptools.HttpResponseParser(self)
        self._began = time.monotonic()
        self._transport.write(request.raw)
        if request.leave_after_secs is not None:
            self._disconnect_timer = asyncio.get_running_loop().call_later(request.leave_after_secs, self._disconnect)

    def close(self) -> None:
        self.open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._on_response is None:
            self.close()  # bytes without a request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            self._end()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        response = self._response
        if not response.size:
            response.first_byte = time.monotonic() - self._began
        response.size += len(piece)
        if response.status != 200:
            response.error += piece
        elif self._request.leave_after_bytes is not None and response.size >= self._request.leave_after_bytes:
            self._disconnect()

    def on_message_complete(self) -> None:
        self._response.complete = True
        if not self._parser.should_keep_alive():
            self.close()
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._end()

    def _disconnect(self) -> None:
        if self._on_response is not None:
            self._response.left = True
            self.close()
            self._end()

    def _end(self) -> None:
        """End the request: the first of the end of its response and the disconnect counts."""
        on_response, self._on_response = self._on_response, None
        if self._disconnect_timer is not None:
            self._disconnect_timer.cancel()
            self._disconnect_timer = None
        if on_response is not None:
            self._response.took = time.monotonic() - self._began
            on_response(self._response)
