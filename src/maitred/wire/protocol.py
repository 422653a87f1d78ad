"""A connection from a client: uvicorn's protocol, with the limits that uvicorn leaves to a proxy in front.

    head        at most `MAX_HEAD_BYTES`, within `HEAD_SECS` of its first byte; else 431 or 408
    body        may take any time, but may be silent for `BODY_SILENCE_SECS` at most; else 408. It holds memory meanwhile.
    upgrades    are ignored: no OpenAI API switches protocols
    pipelines   `MAX_PIPELINED` requests may wait behind the current one and are read, so that a disconnect is noticed
    HTTP/1.0    knows no chunks: a body without a length ends with the connection
    errors      are OpenAI error objects, like all others

The parser keeps the received part of a head, so the size of reads is added up while a head is incomplete. A head is measured
only if it came in several reads or in a large one. A timer is set only while a head or a body is incomplete after a read, so a
usual request costs none.

A request that offers an upgrade stops the parser behind its head, with the body unread. A new parser then reads the same head
without the offer, and what follows. For example, `GET / HTTP/1.1`, `upgrade: h2c`, `host: a` is fed again as `GET / HTTP/1.1`,
`host: a`.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from maitred.wire.asgi import ApiError, Message

MAX_HEAD_BYTES = 65_536
"""Largest head of a request (request line and all headers), in bytes."""

HEAD_SECS = 20.0
"""Seconds from the first byte of a head to its end."""

BODY_SILENCE_SECS = 60.0
"""Seconds between two pieces of a request body."""

MAX_PIPELINED = 8
"""Number of requests that are read behind the one being answered."""

LINGER_SECS = 1.0
"""Seconds for which a refused client may go on sending: closing at once could cost it the error response."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on heads and bodies."""

    transport: Any
    cycle: Any
    """The latest request and its response, or None before the first."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.transport = _HeadJoiningTransport(self.transport)
        self._in_head = False
        self._head_size = 0  # Bytes of the reads that brought the head, without the first and the present one.
        self._read_size = 0  # Bytes of the present read.
        self._head_timer: asyncio.TimerHandle | None = None  # Runs while a head is incomplete.
        self._running_cycle: Any = None  # The cycle that is being answered; `cycle` may wait behind it.
        self._in_body = False
        self._body_last_received = 0.0
        self._body_timer: asyncio.TimerHandle | None = None  # Runs while a body is incomplete.
        self._is_refused = False
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self._cancel_body_timer()
        self._unset_keepalive_if_required()
        if self._running_cycle is not None:  # uvicorn informs only the latest cycle.
            self._running_cycle.disconnected = True
            self._running_cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._read_size = len(data)
        try:
            while data:
                data = self._feed_parser(data)
        except ApiError as error:
            self._refuse_request(error)
            return
        if self._in_head:
            self._on_partial_head()
        elif self._in_body:
            self._on_partial_body()

    # The parser and uvicorn call the next five.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._in_head = True
        # The first read may begin with earlier requests, so it does not count: this cancels what `_on_partial_head` adds.
        self._head_size = -self._read_size

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        if self._head_timer is not None:
            self._cancel_head_timer()
        in_one_read = self._head_size == -self._read_size
        if not (in_one_read and self._read_size <= MAX_HEAD_BYTES) and self._head_bytes() > MAX_HEAD_BYTES:
            raise _head_too_large()
        self._unset_keepalive_if_required()
        before = self.cycle
        super().on_headers_complete()
        # uvicorn stops reading behind a pipelined request, and then no disconnect would be noticed.
        if self.pipeline and len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()
        if self.scope["http_version"] != "1.1" and self.cycle is not before:
            # uvicorn creates the cycle itself and can be given no other class, so the class is changed afterwards.
            self.cycle.__class__ = _UnchunkedCycle
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Return True. uvicorn asks only when the parser has stopped for an upgrade, and must then leave the request alone."""
        return True

    def _feed_parser(self, data: bytes) -> bytes:
        """Feed `data` to the parser, and return what must be fed next. Raises ApiError."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._restart_without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            raise cause if isinstance(cause, ApiError) else _invalid_http(cause) from error
        except httptools.HttpParserError as error:
            raise _invalid_http(error) from error
        return b""

    def _restart_without_upgrade(self) -> bytes:
        """Make a new parser, and return the head that was read, without its offer, to be fed again. Raises ApiError."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise ApiError(400, "CONNECT is for proxies, and this is none", kind="invalid_request_error", code="bad_request")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn has it.
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _on_partial_head(self) -> None:
        self._head_size += self._read_size
        if self._head_size > MAX_HEAD_BYTES:
            self._refuse_request(_head_too_large())
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECS, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # Then it is the server that does not read on.
            self._head_timer = self.loop.call_later(HEAD_SECS, self._on_head_timeout)
        else:
            words = f"the head of the request was not complete within {HEAD_SECS:g} s"
            self._refuse_request(ApiError(408, words, kind="invalid_request_error", code="request_timeout"))

    def _on_partial_body(self) -> None:
        self._body_last_received = self.loop.time()
        if self._body_timer is None:
            self._body_timer = self.loop.call_later(BODY_SILENCE_SECS, self._check_body_silence)

    def _check_body_silence(self) -> None:
        """Refuse a body that has been silent for too long; check one that goes on again later."""
        self._body_timer = None
        if not self._in_body:
            return
        # The silence is ours if the server has paused reading, or has not come to this request yet.
        is_ours = self.flow.read_paused or self._running_cycle is not self.cycle
        silent = 0.0 if is_ours else self.loop.time() - self._body_last_received
        if silent < BODY_SILENCE_SECS:
            self._body_timer = self.loop.call_later(BODY_SILENCE_SECS - silent, self._check_body_silence)
        elif self.cycle.response_complete:
            self.transport.close()
        else:
            words = f"nothing more of the request body came for {BODY_SILENCE_SECS:g} s"
            self._refuse_request(ApiError(408, words, kind="invalid_request_error", code="request_timeout"))

    def _cancel_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_request(self, error: ApiError) -> None:
        """Send `error` if no other response has started, and read no more."""
        self._is_refused = True
        self._cancel_head_timer()
        self._cancel_body_timer()
        cycle = self.cycle
        answering = self.pipeline or (cycle is not None and cycle.response_started and not cycle.response_complete)
        if answering or self.transport.is_closing():
            self.transport.close()
            return
        if cycle is not None:  # Its body was wrong: for its app the client has disconnected.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write_last(_encode_error(error))
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_SECS, self.timeout_keep_alive_handler)


class _UnchunkedCycle(RequestResponseCycle):
    """The response to an HTTP/1.0 client: without a length in its head it ends with the connection."""

    _has_length = True

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not self._has_length:
                self.chunked_encoding = False
        elif not self._has_length:
            # uvicorn takes a body that is longer or shorter than expected for an error, and here no length is known before.
            self.expected_content_length = len(message.get("body", b""))
        await super().send(cast(Any, message))


class _HeadJoiningTransport:
    """A transport, as far as uvicorn uses it for responses, that sends a head together with the body that follows.

    uvicorn writes them apart, and uvloop sends each write at once, so every small response would cost a second system call. A
    head without a following write is sent in the next iteration of the loop; so is a piece of a body that begins like a head.
    """

    __slots__ = ("_call_soon", "_held", "_transport", "_write", "_writelines", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write, self._writelines = transport.write, transport.writelines
        self._call_soon = asyncio.get_running_loop().call_soon
        self._held = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._writelines((held, data))
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._call_soon(self._flush)
        else:
            self._write(data)

    def write_last(self, data: bytes) -> None:
        """Write the last bytes to the client, which may go on sending."""
        self._flush()
        self._write(data)
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)


_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def _encode_error(error: ApiError) -> bytes:
    body = error.body()
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-smg-error-code: %b\r\nconnection: close"
    )
    return head % (error.status, _REASONS[error.status], len(body), (error.code or "").encode()) + b"\r\n\r\n" + body


def _head_too_large() -> ApiError:
    words = f"the request line and headers are larger than the {MAX_HEAD_BYTES} bytes allowed here"
    return ApiError(431, words, kind="invalid_request_error", code="headers_too_large")


def _invalid_http(error: BaseException | None) -> ApiError:
    return ApiError(400, f"this is no HTTP/1.1 request: {error}", kind="invalid_request_error", code="bad_request")
