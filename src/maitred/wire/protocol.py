"""A connection from a client: uvicorn's protocol, with limits that it leaves to a proxy in front.

    head        at most `MOST_HEAD_BYTES`, in at most `HEAD_SECS` from its first byte: else 431 and 408
    body        may take its time, but falls silent for `BODY_SILENCE_SECS` at most: else 408. It holds memory while it comes.
    upgrades    nobody asked an OpenAI API to switch protocols: the request is answered as if it had not offered to
    pipelines   a few requests may wait behind the one being answered and are read, so that a client that leaves is noticed
    HTTP/1.0    knows no chunks: a body without a length ends with the connection
    refusals    an OpenAI error object, like any other

The parser keeps what it has of a head, so reads are counted while one is incomplete; only a head that came in several reads,
or in a large one, is measured. A timer is set only while a head or a body is incomplete after a read: a usual request costs
none.

A request that offers an upgrade stops the parser behind its head, body unread. A parser of its own then reads the same head
without the offer, and what follows.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from maitred.wire.asgi import ApiError, Message

MOST_HEAD_BYTES = 65_536
"""The request line and all headers."""

HEAD_SECS = 20.0

BODY_SILENCE_SECS = 60.0

MOST_PIPELINED = 8
"""Requests that are read behind the one that is being answered."""

LINGER_SECS = 1.0
"""How long a client who was refused may go on sending. To close at once could cost it the answer."""


class Protocol(HttpToolsProtocol):
    transport: Any
    cycle: Any
    """The latest request and its answer; None before the first."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.transport = _HeadWithBody(self.transport)
        self._in_head = False
        self._head_size = 0  # of the reads that brought it, without the first and the present one
        self._reading = 0  # size of the present read
        self._deadline: asyncio.TimerHandle | None = None  # of an incomplete head
        self._answering: Any = None  # the cycle whose app runs; `cycle` may be one that waits behind it
        self._in_body = False
        self._body_heard = 0.0
        self._silence: asyncio.TimerHandle | None = None  # of an incomplete body
        self._refused = False
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_deadline()
        self._unset_silence()
        self._unset_keepalive_if_required()
        if self._answering is not None:  # uvicorn tells the latest cycle only
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._reading = len(data)
        try:
            while data:
                data = self._feed(data)
        except ApiError as error:
            self._refuse(error)
            return
        if self._in_head:
            self._head_goes_on()
        elif self._in_body:
            self._body_goes_on()

    # As the target of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._in_head = True
        self._head_size = -self._reading

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        if self._deadline is not None:
            self._unset_deadline()
        in_one_read = self._head_size == -self._reading
        if not (in_one_read and self._reading <= MOST_HEAD_BYTES) and self._measured_head() > MOST_HEAD_BYTES:
            raise _head_too_large()
        self._unset_keepalive_if_required()
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline and len(self.pipeline) <= MOST_PIPELINED:
            self.flow.resume_reading()
        if self.scope["http_version"] != "1.1" and self.cycle is not before:
            self.cycle.__class__ = _UntilClose
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Asked only when the parser has stopped for an upgrade: uvicorn is to leave this request alone (see `_feed`)."""
        return True

    # Inside

    def _feed(self, data: bytes) -> bytes:
        """Returns what is still to be fed. Raises ApiError."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            raise cause if isinstance(cause, ApiError) else _not_http(cause) from error
        except httptools.HttpParserError as error:
            raise _not_http(error) from error
        return b""

    def _without_upgrade(self) -> bytes:
        """The head that was read, without its offer, for a fresh parser. Raises ApiError."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise ApiError(400, "CONNECT is for proxies, and this is none", kind="invalid_request_error", code="bad_request")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _measured_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _head_goes_on(self) -> None:
        self._head_size += self._reading
        if self._head_size > MOST_HEAD_BYTES:
            self._refuse(_head_too_large())
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.cycle is not None and not self.cycle.response_complete:  # then it is we who do not read on
            self._deadline = self.loop.call_later(HEAD_SECS, self._head_is_late)
        else:
            words = f"the head of the request was not complete within {HEAD_SECS:g} s"
            self._refuse(ApiError(408, words, kind="invalid_request_error", code="request_timeout"))

    def _body_goes_on(self) -> None:
        self._body_heard = self.loop.time()
        if self._silence is None:
            self._silence = self.loop.call_later(BODY_SILENCE_SECS, self._look_at_body)

    def _look_at_body(self) -> None:
        """One that goes on is looked at again when it could have been silent for long enough."""
        self._silence = None
        if not self._in_body:
            return
        ours = self.flow.read_paused or self._answering is not self.cycle  # it is we who do not read, or are not that far
        silent = 0.0 if ours else self.loop.time() - self._body_heard
        if silent < BODY_SILENCE_SECS:
            self._silence = self.loop.call_later(BODY_SILENCE_SECS - silent, self._look_at_body)
        elif self.cycle.response_complete:
            self.transport.close()
        else:
            words = f"nothing more of the request body came for {BODY_SILENCE_SECS:g} s"
            self._refuse(ApiError(408, words, kind="invalid_request_error", code="request_timeout"))

    def _unset_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, error: ApiError) -> None:
        """Answer with it, if no other answer is under way, and read no more."""
        self._refused = True
        self._unset_deadline()
        self._unset_silence()
        cycle = self.cycle
        answering = self.pipeline or (cycle is not None and cycle.response_started and not cycle.response_complete)
        if answering or self.transport.is_closing():
            self.transport.close()
            return
        if cycle is not None:  # its body is what was wrong: for the app the client has left
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.end(_answer(error))
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_SECS, self.timeout_keep_alive_handler)


class _UntilClose(RequestResponseCycle):
    """The answer to an old client, whose end is that of the connection unless its head has a length."""

    _measured = True

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if message["type"] == "http.response.start":
            self._measured = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not self._measured:
                self.chunked_encoding = False
        elif not self._measured:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(cast(Any, message))


class _HeadWithBody:
    """A transport, as far as uvicorn uses it for answers, that sends the head of one together with the body that follows.

    uvicorn writes them apart and uvloop sends each write at once, so every small answer would cost a second system call. A head
    after which nothing comes is sent in the next turn of the loop; a body that looks like a head only waits for that as well.
    """

    __slots__ = ("_held", "_later", "_transport", "_write", "_writelines", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write, self._writelines = transport.write, transport.writelines
        self._later = asyncio.get_running_loop().call_soon
        self._held = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._writelines((held, data))
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._later(self._flush)
        else:
            self._write(data)

    def end(self, data: bytes) -> None:
        """The last that the other side will hear; it may go on talking."""
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


def _answer(error: ApiError) -> bytes:
    body = error.body()
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-smg-error-code: %b\r\nconnection: close"
    )
    return head % (error.status, _REASONS[error.status], len(body), (error.code or "").encode()) + b"\r\n\r\n" + body


def _head_too_large() -> ApiError:
    words = f"the request line and headers are larger than the {MOST_HEAD_BYTES} bytes allowed here"
    return ApiError(431, words, kind="invalid_request_error", code="headers_too_large")


def _not_http(error: BaseException | None) -> ApiError:
    return ApiError(400, f"this is no HTTP/1.1 request: {error}", kind="invalid_request_error", code="bad_request")
