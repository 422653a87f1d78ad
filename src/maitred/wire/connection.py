"""One HTTP/1.1 connection to an upstream, carrying one request at a time.

The end of a response must never be guessed: what follows it would be taken for the next response, which belongs to another
request. A response ends

    1. by its `Transfer-Encoding: chunked`,
    2. by its one `Content-Length`,
    3. at once (204, 304, HEAD), or else
    4. at the end of the connection.

A response with both of the first two, or with two different lengths, is refused. A connection is used again only if the
request had been sent completely, the response ended in one of the first three ways, and nothing followed it.

Bytes are parsed by httptools; what one read of the socket brought is handed over as one piece.

**Silence.** One timer watches a connection: `head_secs` until the head, then `idle_secs` between two pieces, not counting time
in which the connection is paused. A timer that is due early is left alone and set again when it rings, so that a busy
connection sets hardly any. For example, with `idle_secs: 300` and a piece every 2 s, the timer rings every 298 s or so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

from maitred.wire.asgi import Headers
from maitred.wire.errors import Disconnected, ProtocolError, Truncated, UpstreamError, UpstreamLimits, UpstreamTimeout
from maitred.wire.response import UpstreamResponse

MAX_JOINED_BYTES = 16_384
"""Size up to which a body is copied behind its head: cheaper than a vector of two. Either way is one system call."""


class UpstreamConnection(asyncio.Protocol):
    """One connection, as the event loop and the parser call it. The event loop makes it."""

    def __init__(
        self,
        limits: UpstreamLimits,
        loop: asyncio.AbstractEventLoop,
        on_idle: Callable[[UpstreamConnection], object],
        on_closed: Callable[[UpstreamConnection], object],
    ) -> None:
        """`on_idle` is called each time a response has ended and the connection can be used again, `on_closed` once."""
        self.limits = limits
        self.idle_since = 0.0
        self.was_used = False
        """Whether it has carried a whole response."""
        self.has_received = False
        """Whether any byte of the current response has arrived."""
        self._loop = loop
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._response: UpstreamResponse | None = None
        self._bodiless = False
        self._reset()

    def _reset(self) -> None:
        self._status = 0  # That of the final response once its head is complete, else 0.
        self._headers: Headers = []
        self._head_size = 0  # Bytes of the reads until the head was complete.
        self._header_size = 0  # Bytes of its headers.
        self._has_length = False
        self._chunked = False
        self._until_close = False
        self._is_complete = False
        self._reusable = True
        self._paused = False
        self._pieces: list[bytes] = []
        self._last_received = self._loop.time()

    def send_request(self, head: bytes, body: bytes, *, bodiless: bool = False) -> UpstreamResponse:
        """Send a request. `bodiless` means that its response has no body, whatever its head says (HEAD)."""
        assert self._transport is not None
        self._reset()
        self.has_received = False
        self._bodiless = bodiless
        self._response = UpstreamResponse(self, self.limits.high_water, self._loop)
        if len(body) <= MAX_JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self._arm_silence_timer(self.limits.head_secs)
        return self._response

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close a connection that carries nothing."""
        if self._transport is not None:
            self._transport.close()

    # The response calls the next three (`ResponseSource`).

    def pause(self) -> None:
        self._paused = True
        if self.is_usable:
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume(self) -> None:
        self._paused = False
        self._last_received = self._loop.time()
        if self.is_usable:
            cast(asyncio.Transport, self._transport).resume_reading()

    def abort(self) -> None:
        self._response = None
        if self._transport is not None:
            self._transport.abort()

    # The event loop calls the next four (`asyncio.Protocol`).

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            self.abort()  # Bytes without a request could only be taken for the response to the next one.
            return
        self.has_received = True
        in_head = not self._status
        if in_head:
            self._head_size += len(data)
        else:
            self._last_received = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # An error behind the end of a response concerns what follows: the response stands, the connection does not.
            if not self._is_complete:
                self._fail(error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error)
                return
            self._reusable = False
        if self._status:
            self._deliver_body()
            if in_head and self._response is not None:
                self._last_received = self._loop.time()
                self._arm_silence_timer(self.limits.idle_secs)
        elif self._head_size > self.limits.max_head:
            self._fail(self._head_too_large())

    def eof_received(self) -> None:
        if self._until_close and not self._is_complete:
            self._is_complete, self._reusable = True, False
            self._deliver_body()

    def connection_lost(self, exc: Exception | None) -> None:
        response, self._response = self._response, None
        self._transport = None
        self._parser = None  # It refers to this connection: without the cycle both are freed at once.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if response is not None:
            response.on_error(self._closed_early())
        self._on_closed(self)

    # The parser calls the next five.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return  # A trailer, which HTTP/1.1 lets a proxy drop, or the head of a response without a request.
        self._header_size += len(name) + len(value) + 4
        if self._header_size > self.limits.max_head:
            raise self._head_too_large()
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-length":
            self._has_length = True
        elif name == b"transfer-encoding":
            # Another coding, or chunked twice, would make the end of the body a matter of interpretation.
            if self._chunked or value.strip().lower() != b"chunked":
                raise ProtocolError("the upstream's response has a transfer coding other than chunked")
            self._chunked = True

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        status = self._parser.get_status_code()
        if status == 101:
            raise ProtocolError("the upstream switched protocols without being asked to")
        if not 100 <= status <= 599:
            raise ProtocolError(f"the upstream answered with the status {status}, which there is not")
        if status < 200:
            # An interim response, such as 103: the final one follows, with headers of its own. The sizes keep counting, so
            # an endless row of interim responses reaches `max_head`.
            self._headers, self._has_length, self._chunked = [], False, False
            return
        self._status = status
        assert self._response is not None
        self._response.on_head(status, self._headers)
        if self._bodiless:
            self._is_complete, self._reusable = True, False  # The parser cannot be told that no body follows.
        else:
            self._until_close = not self._chunked and not self._has_length and status not in (204, 304)

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._pieces.append(body)

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._reusable = False  # Something follows the response.

    def on_message_complete(self) -> None:
        if self._status and not self._is_complete:
            self._is_complete = True
            self._reusable = self._parser.should_keep_alive()

    def _deliver_body(self) -> None:
        response, pieces = self._response, self._pieces
        assert response is not None
        if self._is_complete:
            # The connection goes back before the end is delivered, so that what the end sets off finds it idle.
            self._finish_response()
            response.on_body(b"".join(pieces), False)
        elif pieces:
            self._pieces = []
            response.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces), True)

    def _finish_response(self) -> None:
        """Return the connection to its pool if the next request cannot be affected by this one; otherwise close it."""
        transport = self._transport
        assert transport is not None
        self._response = None
        # An upstream may answer before it has the whole request. The unsent rest would go out in front of the next request.
        if not self._reusable or transport.is_closing() or transport.get_write_buffer_size():
            transport.abort()
            return
        self.was_used = True
        self.idle_since = self._loop.time()
        self._on_idle(self)

    def _fail(self, error: BaseException | None) -> None:
        response = self._response
        known = error if isinstance(error, UpstreamError) else ProtocolError(f"the upstream does not speak HTTP/1.1: {error}")
        # What came before the error is part of the body, and is delivered before the error.
        if self._pieces and response is not None:
            response.on_body(b"".join(self._pieces), True)
        self.abort()
        if response is not None:
            response.on_error(known)

    def _head_too_large(self) -> UpstreamError:
        return ProtocolError(f"the head of the upstream's response is larger than {self.limits.max_head} bytes")

    def _closed_early(self) -> UpstreamError:
        if self._status:
            return Truncated("the upstream closed the connection in the middle of its response")
        return Disconnected("the upstream closed the connection before its response")

    def _arm_silence_timer(self, secs: float) -> None:
        """Check for silence in `secs` at the latest. A timer that is due earlier stays: when it rings, it is set again."""
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + secs:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(secs, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        if self._response is None:
            return
        allowed = self.limits.idle_secs if self._status else self.limits.head_secs
        left = allowed if self._paused else self._last_received + allowed - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            where = "in the middle of its response" if self._status else "before its response"
            self._fail(UpstreamTimeout(f"the upstream was silent for {allowed:g} s {where}"))
