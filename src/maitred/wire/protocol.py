"""A connection from a client: between the sockets of the event loop and the exchanges of a handler.

`ServerFraming` says what the bytes mean; here is what takes time or memory, within `client_limits`.

    head        within `HEAD_SECS` of its first byte; else 408
    body        may take any time, at `MIN_BYTES_PER_SEC` or more, measured over `BODY_SECS`; else 408; it holds memory
    pipelines   requests behind the one being answered are kept as bytes; from `MAX_PARKED_BYTES` on the socket is not read,
                and after `PARKED_SECS` they are dropped: the connection ends with the answer, as RFC 9112 (9.3.2) allows
    answers     a client must take `MIN_BYTES_PER_SEC` while an answer waits for it, measured over the send timeout
    idle        a connection without a request is closed after `keep_alive_secs`, or to make room for others

**Reading.** The socket is read on while a request is answered, so that a client that leaves is noticed at once.
**Writing.** A client that is too slow makes `start_response` and `send_piece` return a future, and the next request is not
begun before enough of the last answer was taken. With a send timeout of 60 s, one that takes under 14,400 bytes is cut off.
**Time.** One timer watches all of this, by a clock that stands still while the process does (`loop_clock`). One that is due
early is set again when it rings. An idle connection sets it within a second (`watch_soon`). Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from maitred.wire.certificate import close_transport, end_sending, limit_buffers
from maitred.wire.client_limits import (
    BODY_SECS,
    FIRST_WORDS_SECS,
    HEAD_SECS,
    LINGER_SECS,
    MAX_HEAD_BYTES,
    MAX_PARKED_BYTES,
    MIN_BYTES_PER_SEC,
    PARKED_SECS,
)
from maitred.wire.exchange import ApiError, Exchange, Handler
from maitred.wire.messages import END, Event, FramingError, Headers, RequestHead, State
from maitred.wire.refusals import encode_refusal, framing_refused, internal_error, request_timeout
from maitred.wire.server_context import ServerContext
from maitred.wire.server_framing import CONTINUE, ServerFraming
from maitred.wire.sockets import descriptor_of, peer_of, write_message

log = logging.getLogger("maitred.wire")

_NEVER: Final = float("inf")
_DONE: Final = State.DONE  # members of enums are slow to look up
_IDLE: Final = State.IDLE
_MUST_CLOSE: Final = State.MUST_CLOSE
_SEND_BODY: Final = State.SEND_BODY


class ServerConnection(asyncio.Protocol):
    """One connection, as the event loop, its exchange (`ExchangeConnection`) and the server call it."""

    # What is seldom read before it is set stands in the class.
    _head_since = 0.0
    """When the first byte of an incomplete head came; 0 if there is none."""
    _upload: tuple[float, int] | None = None
    """When the body was measured last, and how many bytes of it there were; None while it is not watched."""
    _unsent: tuple[float, int] | None = None
    """When the unsent bytes were measured last, and how many there were; None while they are not watched."""

    def __init__(self, context: ServerContext, handler: Handler) -> None:
        """`handler` answers its requests."""
        self._context, self._handler = context, handler
        self._loop, self._clock = context.loop, context.clock
        self._framing = ServerFraming(MAX_HEAD_BYTES, context.known_heads)
        self._exchange: Exchange | None = None
        """The exchange under way, until both its request and its response have ended."""
        self._writable: asyncio.Future[None] | None = None
        """Done when the client has taken enough; None if it can be sent more."""
        self._is_refused = False
        """Whether what the client sends is dropped."""
        self._is_reading = True
        self._parked_bytes = 0
        """The bytes of this connection among the `parked_bytes` of the context."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write = self._transport.write
        self._client, self._socket = peer_of(transport), descriptor_of(transport)
        limit_buffers(self._transport)
        is_short = self._socket >= self._context.descriptors.mark
        # Over TLS there was room when it was accepted (`handshakes`). Its handshake would be the first to be given up now.
        if is_short and transport.get_extra_info("sslcontext") is None and not self._context.make_room(self._socket):
            self.abort()
        self._context.connections[self] = None
        self._made_at = self._idle_since = self._clock.time()
        self._context.watch_soon(self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        events = self._framing.receive_data(data)
        if len(events) == 3 and events[2] is END and type(events[0]) is RequestHead:  # a whole request, the usual one
            body = events[1]
            assert type(body) is bytes
            self._start_exchange(events[0]).on_whole_body(body)
        elif len(events) == 2 and events[1] is END and type(events[0]) is RequestHead:  # the same without a body
            self._start_exchange(events[0]).on_body_end()
        elif events:
            self._handle_events(events)
        if self._framing.peer is not _DONE or self._framing.pending_bytes or not self._is_reading:
            self._after_read()

    def connection_lost(self, error: Exception | None) -> None:
        self._framing.receive_eof()
        self._count_parked()
        self._context.sockets.stop_watching(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_disconnect()
        self.resume_writing()
        self._context.on_closed(self)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()
            self._watch_unsent()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            self._unsent = None
            if not writable.done():
                writable.set_result(None)
            if self._transport.is_closing():
                self._watch_unsent()
            elif self._exchange is not None and self._exchange.response_ended:
                self._end_exchange()

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        head = self._framing.start_response(status, headers)
        write_message(self._transport, head, self._framing.send_data(piece, more) if piece or not more else b"")
        if not more:
            self._end_exchange()
        return self._writable

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        if data := self._framing.send_data(piece, more):
            self._write(data)
        if not more:
            self._end_exchange()
        return self._writable

    def send_continue(self) -> None:
        if self._framing.peer is _SEND_BODY and self._framing.own is State.SEND_RESPONSE:
            self._write(CONTINUE)

    def on_body_read(self) -> None:
        if not self._is_reading:
            self._update_reading()

    def drain(self) -> None:
        if self._exchange is not None:
            if not self._exchange.response_started:
                self._end_with_exchange()
        elif self._context.closes_idle and not self._framing.is_in_head:
            asked_until = self._made_at + FIRST_WORDS_SECS
            # The first request of a new connection may be on its way: closing now would reset it.
            if self._idle_since == self._made_at and self._clock.time() < asked_until:
                self._set_timer(asked_until)
            else:
                self._close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def idle_since(self) -> float | None:
        is_busy = self._exchange is not None or self._transport.get_write_buffer_size() > 0
        return None if is_busy else self._head_since or self._idle_since

    def _handle_events(self, events: list[Event]) -> None:
        for event in events:
            exchange = self._exchange
            if type(event) is bytes:
                if exchange is not None and not exchange.response_ended:
                    exchange.on_body(event)
            elif event is END:
                if exchange is not None:
                    exchange.on_body_end()
                    if exchange.response_ended:
                        self._end_exchange()
            elif type(event) is RequestHead:
                self._start_exchange(event)
            else:
                self._refuse(framing_refused(cast(FramingError, event)))

    def _start_exchange(self, head: RequestHead) -> Exchange:
        self._head_since, self._upload = 0.0, None
        self._exchange = exchange = Exchange(head, self, self._client)
        if self._context.is_draining:
            self._end_with_exchange()
        exchange.task = task = self._loop.create_task(self._serve(exchange))
        self._context.tasks[task] = None
        return exchange

    async def _serve(self, exchange: Exchange) -> None:
        """Run the handler, and end the exchange if the handler has not."""
        try:
            await self._handler(exchange)
        except asyncio.CancelledError:
            self._cut(exchange)
            raise
        except Exception:
            log.exception("the handler of %s %s failed", exchange.method, exchange.path)
        finally:
            self._context.tasks.pop(cast(asyncio.Task[None], exchange.task), None)
        if not exchange.response_ended:
            self._cut(exchange)

    def _cut(self, exchange: Exchange) -> None:
        """Close the connection if the exchange has not ended: a response that breaks off must not look whole."""
        if self._exchange is exchange and not exchange.response_ended:
            if exchange.response_started or self._transport.is_closing():
                self._close()
            else:
                self._refuse(internal_error())

    def _end_exchange(self) -> None:
        """Go on to the next request, when the client has sent all of this one and has taken enough of its answer."""
        framing = self._framing
        if framing.own is _MUST_CLOSE:
            self._close_after_answer()
        elif self._writable is None and framing.peer is _DONE:
            self._exchange = None
            self._idle_since = self._clock.last_beat  # exact enough for what lasts a minute
            if self._timer is None:
                self._context.watch_soon(self)
            events = framing.next_exchange()
            if events:
                self._handle_events(events)
            if events or self._parked_bytes or framing.is_in_head:
                self._after_read()
            elif self._context.closes_idle:
                self._linger()  # What was sent last must not be lost to a reset.
        elif self._writable is None:  # The rest of the request is read and dropped.
            self._after_read()

    def _close_after_answer(self) -> None:
        """Close the connection when all of the answer has been sent."""
        self._exchange = None
        if self._framing.peer is _SEND_BODY or self._framing.drops_further or not self._is_reading:
            self._linger()  # Closing at once would reset the connection, and the client might lose the answer.
        else:
            self._close()

    def _close(self) -> None:
        """Close the connection when everything was sent, or when that takes too long."""
        close_transport(self._transport, self._loop)
        if self._transport.get_write_buffer_size():
            self._watch_unsent()

    def _refuse(self, error: ApiError) -> None:
        """Send `error` if no other response has started, and read no more."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_refused(error)
        if self._transport.is_closing():
            return
        if exchange is not None and exchange.response_started:
            self._close()
            return
        self._write(encode_refusal(self._framing, error, exchange))
        self._linger()

    def _linger(self) -> None:
        """Send nothing more, and drop what the client still sends, for a moment."""
        self._is_refused = True
        end_sending(self._transport)
        self._idle_since = self._clock.time()
        self._set_timer(self._idle_since + LINGER_SECS)
        self._count_parked()
        self._update_reading()

    def _after_read(self) -> None:
        """Watch the head or body that a read has left incomplete, and count the bytes that it has left to wait."""
        framing = self._framing
        if framing.peer is _SEND_BODY:
            if self._upload is None:
                self._watch_upload()
        elif framing.is_in_head and framing.peer is _IDLE and not self._head_since:
            self._head_since = self._clock.time()
            self._set_timer(self._head_since + HEAD_SECS)
        if framing.pending_bytes != self._parked_bytes:
            self._count_parked()
        exchange = self._exchange
        if self._parked_bytes or not self._is_reading or (exchange is not None and exchange.unread_bytes > MAX_PARKED_BYTES):
            self._update_reading()

    def _count_parked(self) -> None:
        before, self._parked_bytes = self._parked_bytes, self._framing.pending_bytes
        self._context.parked_bytes += self._parked_bytes - before

    def _update_reading(self) -> None:
        exchange = self._exchange
        unread = 0 if exchange is None or exchange.response_ended else exchange.unread_bytes
        may_read = self._parked_bytes <= MAX_PARKED_BYTES and unread <= MAX_PARKED_BYTES
        if may_read != self._is_reading and not self._transport.is_closing():
            self._is_reading = may_read
            if may_read:
                self._context.sockets.stop_watching(self._socket)
                self._transport.resume_reading()
                self._watch_upload()
            else:
                # This sees no client whose last bytes found no room in the buffers between.
                self._context.sockets.watch(self._socket, self.abort)
                self._transport.pause_reading()
                self._parked_since: float = self._clock.time()
                self._set_timer(self._parked_since + PARKED_SECS)

    def _set_timer(self, at: float) -> None:
        """Check what is due at `at` at the latest. A timer that is due earlier stays: when it rings, it is set again."""
        if self._timer is not None:
            if self._timer.when() <= self._clock.loop_time(at):
                return
            self._timer.cancel()
        self._timer = self._clock.call_at(at, self._on_timer)

    def watch(self) -> None:
        if self._timer is None:
            self._on_timer()

    def _on_timer(self) -> None:
        self._timer = None
        due, act = self._next_deadline()
        look = self._clock.next_look(due)
        if not look:
            act()
        elif look != _NEVER:
            self._set_timer(look)

    def _next_deadline(self) -> tuple[float, Callable[[], None]]:
        """Return the next deadline of the client, and what is done if it passes."""
        if self._unsent is not None:
            return self._unsent[0] + self._context.send_timeout_secs, self._check_unsent
        if self._is_refused:
            return self._idle_since + LINGER_SECS, self._close
        if not self._is_reading and self._parked_bytes > MAX_PARKED_BYTES:
            return self._parked_since + PARKED_SECS, self.drop_parked
        if self._exchange is None:
            if self._head_since:
                return self._head_since + HEAD_SECS, self._on_head_timeout
            kept_secs = FIRST_WORDS_SECS if self._context.closes_idle else self._context.keep_alive_secs
            return self._idle_since + kept_secs, self._close
        if self._framing.peer is _SEND_BODY and self._is_reading and self._upload is not None:
            return self._upload[0] + BODY_SECS, self._check_upload
        return _NEVER, self._close

    def drop_parked(self) -> None:
        if self._parked_bytes:
            self._end_with_exchange()

    def _end_with_exchange(self) -> None:
        """Answer nothing after the exchange under way, unless the client itself has said so already."""
        if self._framing.keep_alive:
            self._framing.drop_further()
            self._count_parked()
            self._update_reading()

    def _on_head_timeout(self) -> None:
        self._refuse(request_timeout(f"the head of the request was not complete within {HEAD_SECS:g} s"))

    def _watch_upload(self) -> None:
        """From now on the client must send the body."""
        self._upload = self._clock.time(), self._framing.body_bytes
        self._set_timer(self._upload[0] + BODY_SECS)

    def _check_upload(self) -> None:
        """Refuse a body that comes too slowly."""
        came = self._framing.body_bytes - (self._upload or (0.0, 0))[1]
        if came < MIN_BYTES_PER_SEC * BODY_SECS:
            self._refuse(request_timeout(f"only {came} bytes of the request body came in {BODY_SECS:g} s"))
        else:
            self._watch_upload()

    def _watch_unsent(self) -> None:
        """From now on the client must take what is sent to it."""
        self._unsent = self._clock.time(), self._unsent_bytes()
        self._set_timer(self._unsent[0] + self._context.send_timeout_secs)

    def _unsent_bytes(self) -> int:
        # The system takes megabytes from us before it asks for more, so what it has not sent either counts as well.
        return self._transport.get_write_buffer_size() + self._context.sockets.num_queued_bytes(self._socket)

    def _check_unsent(self) -> None:
        """Cut a client off that takes an answer too slowly."""
        assert self._unsent is not None
        taken = self._unsent[1] - self._unsent_bytes()
        if taken < MIN_BYTES_PER_SEC * self._context.send_timeout_secs:
            log.info("a client was cut off: it took %d bytes of its answer in %g s", taken, self._context.send_timeout_secs)
            self.abort()
        else:
            self._watch_unsent()
