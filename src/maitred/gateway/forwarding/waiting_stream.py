"""What fills the silences of a stream, from the arrival of its request to its last event.

A request may wait for minutes: for the memory of its program, for a slot, for the head of an answer, for its next token.
Clients and proxies that give up after a silence would not see the end of it. So a silence is filled, after
`programs.wait_keepalive_secs` while a program waits for memory, and after `gateway.sse_keepalive_secs` at any time. What goes
out is a comment, or another event that clients skip (`stream_dialects`). The first one goes out behind a head that says 200:
what comes of the request is not known yet, and the head cannot be taken back.

    the request waits           HTTP/1.1 200, content-type: text/event-stream, and `: keepalive`, again and again
    its backend streams         the events, as they come, with `: keepalive` between them where the backend is silent
    it is refused, or fails     the error as the last event, in the words of the API

A stream of which the first event comes in time has the head of its backend, as without all this. The proxy knows nothing of
what was sent here: until the backend sends data, the request can be retried, preempted and refused.

Between two events only: nothing is sent in the middle of an event, where a backend may fall silent as well, and no comment once
the backend has sent an `id:`. Nor is anything sent to a client that has not taken what was sent before, or in a body with a
length or an encoding.

    b"data: {...}\\n\\n"  then silence   -> b": keepalive\\n\\n"
    b"data: {..."        then silence   -> nothing
"""

from __future__ import annotations

import asyncio
from typing import Final

from maitred.gateway.error_responses import upstream_failed
from maitred.gateway.forwarding.stream_dialects import StreamDialect
from maitred.scheduler.interface import MemoryLease
from maitred.wire import sse
from maitred.wire.errors import ProtocolError
from maitred.wire.exchange import ResponseWriter
from maitred.wire.messages import Headers

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Size of an answer that is no stream, and is kept until it can be shown as one event."""
_TAIL_BYTES: Final = 4
"""As many as the longest end of an event has, or `\\nid:`."""
_HEADERS_FIXING_BODY: Final = frozenset((b"content-length", b"content-encoding"))
_ENCODED: Final = "the backend has encoded its stream"
"""What the client is told in place of one, because the head has said that nothing is encoded."""
_TOO_LARGE: Final = "the backend has answered with no stream, and with more than can be kept"


class WaitingStream:
    """Stands between the proxy and the writer of one streamed response. Must be stopped."""

    def __init__(
        self, writer: ResponseWriter, dialect: StreamDialect, id_headers: Headers, memory_secs: float, stream_secs: float
    ) -> None:
        """`id_headers` tell the client the id of its request. `memory_secs` is the silence in seconds that is filled while the
        request waits for memory, `stream_secs` that which is filled at any time. One of them may be 0, for never."""
        self._writer = writer
        self._dialect = dialect
        self._id_headers = id_headers
        self._memory_secs = memory_secs
        self._stream_secs = stream_secs
        self._secs = stream_secs
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_sent = self._loop.time()
        self._busy: asyncio.Future[None] | None = None
        """Done when the client has taken what was sent last, or None if it has."""
        self._tail = b"\n\n"
        """The last bytes of the stream, but for what fills its silences."""
        self._may_fill = True
        """Whether a silence can be filled, as far as the head of the backend and its events allow it."""
        self._has_head = False
        """Whether the client has the head of its response."""
        self._has_begun = False
        """Whether it has that from here."""
        self._is_stream = True
        """Whether what follows that head are events of the backend."""
        self._status = 0
        """Of another answer."""
        self._body: list[bytes] = []
        """What has come of that."""
        self._body_bytes = 0
        self._is_encoded = False
        """Whether that cannot be shown."""
        if stream_secs:
            self._start_timer(stream_secs)

    @property
    def keeps_answer(self) -> bool:
        """Whether the client has a stream that was begun here, and gets an answer that is none as an event at its end."""
        return self._has_begun and not self._is_stream

    async def wait(self, lease: MemoryLease) -> None:
        """Return when a step has memory. Raises ProgramRejected if it will get none."""
        if not self._memory_secs or lease.memory is not None:
            await lease.wait()
            return
        if self._timer is None:
            self._last_sent = self._loop.time()
        self._start_timer(min(self._memory_secs, self._stream_secs or self._memory_secs))
        try:
            await lease.wait()
        finally:
            if not self._has_begun:
                self._start_timer(self._stream_secs)

    def stop(self) -> None:
        """Fill no more silences. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_stream_head(self, headers: Headers) -> None:
        """Take note of the head of a stream of which no data has come."""
        self._may_fill = self._has_begun or is_open_ended(headers)

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send the beginning of the response, as a part of the stream if that has begun."""
        is_stream = sse.is_event_stream(headers)
        if not (self._stream_secs and more and (is_stream or self._has_begun)):
            self.stop()
        if not self._has_begun:
            self._has_head, self._may_fill = True, is_open_ended(headers)
            self._note_sent(piece)
            self._busy = self._writer.start_response(status, headers, piece, more)
            return self._busy
        self._is_encoded = any(name == b"content-encoding" and value != b"identity" for name, value in headers)
        self._is_stream = status == 200 and is_stream and not self._is_encoded
        self._status, self._body, self._body_bytes = status, [], 0
        return self.send_piece(piece, more)

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send a piece of the response, as a part of the stream if that has begun."""
        if self._has_begun and not self._is_stream:
            return self._keep_piece(piece, more)
        self._note_sent(piece)
        if not more:
            self.stop()
        self._busy = self._writer.send_piece(piece, more)
        return self._busy

    def _keep_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Keep a piece of an answer that is no stream; with the last one, send the answer as an event. Raises ProtocolError if
        more comes of an answer that cannot be shown: it may have no end, and is read no further."""
        is_first, self._body_bytes = self._body_bytes == 0, self._body_bytes + len(piece)
        if self._body_bytes <= MAX_ANSWER_BYTES and not self._is_encoded:
            self._body.append(piece)
        else:
            self._body.clear()
            if more and not is_first:
                raise ProtocolError(_ENCODED if self._is_encoded else _TOO_LARGE)
        if more:
            return None
        self.stop()
        if self._is_encoded or self._body_bytes > MAX_ANSWER_BYTES:
            error = upstream_failed(ProtocolError(_ENCODED if self._is_encoded else _TOO_LARGE))
            event = self._dialect.refusal_event(error)
        else:
            event = self._dialect.answer_event(self._status, b"".join(self._body))
        return self._writer.send_piece(event, False)

    def _start_timer(self, secs: float) -> None:
        """From now on, fill a silence after `secs`; 0: none is filled."""
        self.stop()
        self._secs = secs
        if secs:
            self._timer = self._loop.call_later(max(0.0, self._last_sent + secs - self._loop.time()), self._on_timer)

    def _on_timer(self) -> None:
        # A piece only notes its time, and the timer is set again when it rings: a stream of tokens sets hardly any.
        silence_left = self._last_sent + self._secs - self._loop.time()
        if silence_left <= 0:
            self._fill_silence()
            silence_left = self._secs
        self._timer = self._loop.call_later(silence_left, self._on_timer)

    def _note_sent(self, piece: bytes) -> None:
        self._last_sent = self._loop.time()
        if self._may_fill:
            seen = self._tail + piece
            self._tail = seen[-_TAIL_BYTES:]
            has_id = b"\nid:" in seen or b"\rid:" in seen
            self._may_fill = self._dialect.has_keepalive_events or not has_id

    def _fill_silence(self) -> None:
        """Send what fills a silence if the stream stands between two events and the client has taken all that was sent."""
        is_client_ready = self._busy is None or self._busy.done()
        if not (is_client_ready and self._may_fill and self._tail.endswith(sse.EVENT_ENDS)):
            return
        self._last_sent = self._loop.time()
        if self._has_head:
            self._busy = self._writer.send_piece(self._dialect.keepalive, True)
            return
        self._has_head = self._has_begun = True
        headers = [
            (b"content-type", sse.EVENT_STREAM_TYPE),
            (b"cache-control", b"no-cache"),
            *self._id_headers,
        ]
        self._busy = self._writer.start_response(200, headers, self._dialect.keepalive, True)


def is_open_ended(headers: Headers) -> bool:
    """Return whether events can be added to a body with these headers: its length must be open and its bytes not encoded."""
    return not any(name in _HEADERS_FIXING_BODY for name, _ in headers)
