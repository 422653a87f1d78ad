"""One HTTP/1.1 connection to an upstream, carrying one request at a time.

`ClientFraming` says what the bytes mean, and where a response ends. A connection is used again only if it says so, and the
request had been sent completely. What one read of the socket brought of a body is handed over as one piece.

**Large bodies.** A body goes out in slices of `_SLICE_BYTES`, the next one when the transport has room again: the system copies
megabytes in one call, and TLS encrypts them, while nothing else runs. 31 MiB at once hold the loop for 10 ms or more.

**Silence.** One timer watches a connection: `head_secs` until the head, then `idle_secs` between two pieces, not counting time
in which reading is paused. For example, with `idle_secs: 300` and a piece every 2 s, the timer rings every 298 s or so.

**A dead kept connection.** An upstream closes connections for their age, and a load balancer forgets them. A connection was
dead before the request came if it had been used before, and is lost within `STALE_SECS` without a byte of a response.

The connection is the same over TLS; the event loop encrypts (`tls`). Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from maitred.wire.certificate import close_transport, limit_buffers
from maitred.wire.client_framing import NO_BLOCK, ClientFraming, HeaderBlock
from maitred.wire.errors import Disconnected, ProtocolError, Truncated, UpstreamError, UpstreamLimits, UpstreamTimeout
from maitred.wire.known_heads import KnownHeads
from maitred.wire.loop_clock import CATCH_UP_SECS, clock_of
from maitred.wire.messages import END, Event, FramingError, ResponseHead, State
from maitred.wire.response import UpstreamResponse
from maitred.wire.sockets import write_message
from maitred.wire.tls import keep_session

_DONE: Final = State.DONE
_SLICE_BYTES: Final = 256 * 1024
STALE_SECS = 0.25
"""Seconds in which a request on a kept connection finds out that the connection was dead before."""


class UpstreamConnection(asyncio.Protocol):
    """One connection, as the event loop, which makes it, and its response (`ResponseSource`) call it."""

    def __init__(
        self,
        limits: UpstreamLimits,
        loop: asyncio.AbstractEventLoop,
        on_idle: Callable[[UpstreamConnection], object],
        on_closed: Callable[[UpstreamConnection], object],
        known_heads: KnownHeads[ResponseHead] | None = None,
    ) -> None:
        """`on_idle` is called each time a response has ended and the connection can be used again, `on_closed` once."""
        self.limits = limits
        self.idle_since = 0.0
        self.was_used = False
        """Whether it has carried a whole response."""
        self.has_received = False
        """Whether any byte of the current response has arrived."""
        self.address = ""
        """The address to which it was made."""
        self._is_retired = False
        self._loop, self._clock = loop, clock_of(loop)
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._known_heads = known_heads
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = 0.0
        """When the timer rings, by the clock of deadlines."""
        self._response: UpstreamResponse | None = None
        self._has_head = False
        self._is_reading_paused = self._is_writing_paused = False
        self._unsent: memoryview | None = None
        """The rest of a large body, still to be written; or None."""
        self._last_received = 0.0

    def send_request(
        self,
        method: str,
        target: str,
        authority: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        block: HeaderBlock = NO_BLOCK,
    ) -> UpstreamResponse:
        """Send a request. Raises ValueError, and sends nothing, if a header contains a line end."""
        assert self._transport is not None
        head = self._framing.send_request(method, target, authority, headers, len(body), block)
        self.has_received = self._has_head = self._is_reading_paused = False
        self._last_received = self._clock.time()
        self._response = UpstreamResponse(self, self.limits.high_water, self._loop)
        if len(body) <= _SLICE_BYTES:
            write_message(self._transport, head, body)
        else:
            self._transport.write(head)
            self._unsent = memoryview(body)
            self._write_slice()
        if self._timer is None or self._looks_at > self._last_received + self.limits.head_secs:
            self._arm_silence_timer(self.limits.head_secs)
        return self._response

    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def was_dead(self) -> bool:
        """Whether a connection that has just been lost was dead before its last request was sent."""
        # Until a head has come, what was last received is nothing, and its time is that of the request.
        lasted = self._clock.time() - self._last_received
        # A request on a connection that the other end has left is answered by a reset within a round trip. Later than that, the
        # upstream was at work and died of something else, perhaps of the request. Which it was cannot be known for certain.
        return self.was_used and not self.has_received and lasted <= STALE_SECS

    def close(self) -> None:
        """Close a connection that carries nothing."""
        if self._transport is not None:
            close_transport(self._transport, self._loop)

    def retire(self) -> None:
        """Use the connection no more: close it now, or when its response has ended."""
        self._is_retired = True
        if self._response is None:
            self.close()

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if self.is_usable():
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._last_received = self._clock.time()  # the silence until now was ours
        if self.is_usable():
            cast(asyncio.Transport, self._transport).resume_reading()

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._unsent is not None:
            self._loop.call_soon(self._write_slice)  # Not now: the loop has others to serve first.

    def _write_slice(self) -> None:
        """Write the next slice of a large body, unless the transport has no room: `resume_writing` goes on then."""
        unsent, transport = self._unsent, self._transport
        if unsent is None or transport is None or transport.is_closing() or self._is_writing_paused:
            return
        self._unsent = unsent[_SLICE_BYTES:] if len(unsent) > _SLICE_BYTES else None
        transport.write(unsent[:_SLICE_BYTES])
        if self._unsent is not None and not self._is_writing_paused:
            self._loop.call_soon(self._write_slice)

    def abort(self) -> None:
        self._response = self._unsent = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        limit_buffers(self._transport)
        # Not before: it and its parser refer to each other until the connection is lost, and one that was never made is not.
        self._framing = ClientFraming(self.limits.max_head, self._known_heads)

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            self.abort()  # Bytes without a request could only be taken for the response to the next one.
            return
        self.has_received = True
        if self._has_head:
            self._last_received = self._clock.time()
        events = self._framing.receive_data(data)
        if len(events) == 1 and type(events[0]) is bytes:  # the usual piece of a stream
            self._response.on_body(events[0], True)
        elif len(events) == 3 and events[2] is END and type(events[0]) is ResponseHead:  # a whole response, the usual one
            response, body = self._response, events[1]
            assert type(body) is bytes
            # The connection goes back before the end is delivered, so that what the end sets off finds it idle.
            self._finish_response()
            response.on_whole(events[0], body)
        else:
            self._handle_events(events)

    def eof_received(self) -> None:
        if self._response is not None:
            self._handle_events(self._framing.receive_eof())

    def connection_lost(self, exc: Exception | None) -> None:
        response, self._response = self._response, None
        self._transport = self._unsent = None
        self._framing.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if response is not None:
            response.on_error(self._closed_early())
        self._on_closed(self)

    def _handle_events(self, events: list[Event]) -> None:
        """Hand on what a read has brought: a head, pieces of the body as one, the end of the response or an error; each of them
        may be absent, and nothing else comes between."""
        response, first = self._response, events[0] if events else None
        assert response is not None
        if END in events[-2:]:
            # What follows a response concerns the connection, and not the response.
            events = events[: events.index(END, -2) + 1]
        if type(first) is ResponseHead:
            self._has_head, self._last_received = True, self._clock.time()
            response.on_head(first.status, first.headers)
            if self._timer is None or self._looks_at > self._last_received + self.limits.idle_secs:
                self._arm_silence_timer(self.limits.idle_secs)
            events = events[1:]
        if not events:
            return
        last = events[-1]
        if last is END:
            # The connection goes back before the end is delivered, so that what the end sets off finds it idle.
            self._finish_response()
            response.on_body(_joined(events[:-1]), False)
        elif type(last) is bytes:
            response.on_body(_joined(events), True)
        else:
            self._fail(events[:-1], ProtocolError(str(cast(FramingError, last))))

    def _finish_response(self) -> None:
        """Return the connection to its pool if the next request cannot be affected by this one; otherwise close it."""
        transport, framing = self._transport, self._framing
        assert transport is not None
        self._response = None
        # An upstream may answer before it has the whole request. The unsent rest would go out in front of the next request.
        has_unsent = self._unsent is not None or transport.get_write_buffer_size()
        if framing.peer is not _DONE or self._is_retired or transport.is_closing() or has_unsent:
            self._unsent = None
            transport.abort()
            return
        framing.next_exchange()
        if not self.was_used:
            self.was_used = True
            keep_session(transport)  # A server sends its tickets behind the handshake, at the latest with the first response.
        self.idle_since = self._loop.time()
        self._on_idle(self)

    def _fail(self, pieces: list[Event], error: UpstreamError) -> None:
        response = self._response
        # What came before the error is part of the body, and is delivered before the error.
        if pieces and response is not None:
            response.on_body(_joined(pieces), True)
        self.abort()
        if response is not None:
            response.on_error(error)

    def _closed_early(self) -> UpstreamError:
        if self._has_head:
            return Truncated("the upstream closed the connection in the middle of its response")
        return Disconnected("the upstream closed the connection before its response")

    def _arm_silence_timer(self, secs: float) -> None:
        """Check for silence `secs` after what was last received, which is now. A timer that is due earlier stays, and is set
        again when it rings, so a busy connection sets hardly any: those who call this have looked."""
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = self._last_received + secs
        self._timer = self._loop.call_later(secs, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        if self._response is None:
            return
        allowed = self.limits.idle_secs if self._has_head else self.limits.head_secs
        left = allowed if self._is_reading_paused else self._last_received + allowed - self._clock.time()
        if left <= 0 and self._clock.is_catching_up:
            left = CATCH_UP_SECS
        if left > 0:
            self._looks_at = self._clock.time() + left
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            where = "in the middle of its response" if self._has_head else "before its response"
            self._fail([], UpstreamTimeout(f"the upstream was silent for {allowed:g} s {where}"))


def _joined(pieces: list[Event]) -> bytes:
    """Return pieces of a body as one."""
    return b"".join(cast(list[bytes], pieces))
