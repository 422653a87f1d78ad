"""Forward the response of a backend to the client.

The head of a streamed response is withheld until the first data of its body; comments that only keep the stream alive are no
data. Until then the client has received nothing, so the request can still go to another backend, wait again, or be preempted.

With `sse_keepalive_secs`, silence is filled with comments (`SseKeepalive`), which clients of server-sent events skip. If a
stream sends no data for that long after its head, the head goes out with such a comment; that is a first byte like any other.

A comment is one only between two events. So the keepalive follows the last bytes of the body, and sends nothing in the middle
of an event, where a backend may fall silent as well. Nor does it send to a client that has not taken what was sent before.

    b"data: {...}\\n\\n"  then silence   -> b": keepalive\\n\\n"
    b"data: {..."        then silence   -> nothing

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from maitred.gateway.answer_usage import AnswerReader
from maitred.gateway.request_fields import REQUEST_ID_HEADER, end_to_end_headers
from maitred.gateway.request_intake import ProxyRequest
from maitred.gateway.request_record import RequestRecord
from maitred.wire import sse
from maitred.wire.answer_errors import AnswerError
from maitred.wire.exchange import ResponseWriter
from maitred.wire.messages import Headers
from maitred.wire.response import PieceWriter, UpstreamResponse

MAX_WITHHELD_BYTES: Final = 16_384
"""Size of the comments before the first data of a stream above which the head is sent without waiting for data."""
_MAX_EVENT_END_BYTES: Final = 4
_OK: Final = 200
_HEADERS_FIXING_BODY: Final = frozenset((b"content-length", b"content-encoding"))


class ResponseForwarder:
    """One response on its way. First `wait_for_data`; then, if the client may receive it, `forward`.

    Most answers come whole: then `take_arrived` has all of it, and nothing is to be waited for.
    """

    __slots__ = (
        *("_has_data", "_is_stream", "_keepalive_secs", "_proxied", "_response", "_withheld", "_writer"),
        *("_record", "reader"),
    )

    def __init__(
        self,
        proxied: ProxyRequest,
        response: UpstreamResponse,
        writer: ResponseWriter,
        keepalive_secs: float,
        record: RequestRecord,
    ) -> None:
        """`keepalive_secs` is the silence, in seconds, after which a comment is sent; 0 turns comments off. `record` is told of
        each piece of the answer as it comes; of a stream, from its first data on."""
        self._proxied = proxied
        self._response = response
        self._writer = writer
        self._is_stream = proxied.request.stream and sse.is_event_stream(response.headers)
        has_comments = keepalive_secs and self._is_stream and allows_comments(response.headers)
        self._keepalive_secs = keepalive_secs if has_comments else 0.0
        self.reader: AnswerReader | None = None
        """What reads the usage, if it is of interest; set before `wait_for_data`."""
        record.is_stream = self._is_stream
        self._record = record
        self._withheld = b""
        """The part of the body that was received and not sent yet, as the client will get it."""
        self._has_data = False

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self._response.status

    @property
    def withheld(self) -> bytes:
        """What has come of the body, and has not been sent yet."""
        return self._withheld

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events that the client has asked for."""
        return self._is_stream

    @property
    def first_error(self) -> AnswerError | None:
        """The error that an answer with status 200 reports in what has come of it, or None. While nothing was sent, another
        backend may be asked."""
        return self._record.error if self._has_data and self._response.status == _OK else None

    @property
    def can_be_replaced(self) -> bool:
        """Whether an answer with status 200 begins with an error that another backend may not give."""
        error = self.first_error
        return error is not None and not error.is_fault_of_client

    def take_arrived(self) -> bool:
        """Take what has come of an answer that is no stream. Return whether that is something; else `wait_for_data` is next."""
        if not self._is_stream and self.reader is None:
            self._withheld = self._response.take_arrived()
            if self._withheld:
                self._note_first_data()
        return self._has_data

    async def wait_for_data(self) -> None:
        """Return when there is something to send: data, the end of the body, or silence to fill. Raises UpstreamError."""
        if not self._is_stream:
            self._withheld = await self._read_piece()
            while not (self._withheld or self._response.is_complete):  # the head of a gzip, perhaps
                self._withheld = await self._read_piece()
            self._note_first_data()
        elif not self._keepalive_secs:
            await self._read_until_data()
        else:
            # The timeout loses no data, because `read_piece` takes a piece only when it returns.
            try:
                async with asyncio.timeout(self._keepalive_secs):
                    await self._read_until_data()
            except TimeoutError:
                return

    def forward(self) -> Awaitable[None] | None:
        """Send the whole response. Return what must be awaited for the rest of it, or None if all was sent. Awaiting raises
        UpstreamError if it breaks off."""
        if self._has_data and not self._keepalive_secs and self._response.is_complete:
            self._note_first_data_sent()
            self._proxied.response_started = True
            return self._writer.start_response(self._response.status, self._client_headers(), self._withheld, False)
        return self._forward_pieces()

    async def _forward_pieces(self) -> None:
        response, writer = self._response, self._writer
        keepalive = None
        if self._keepalive_secs:
            writer = keepalive = SseKeepalive(writer, self._keepalive_secs)
        try:
            if self._has_data:
                self._note_first_data_sent()
                more = not response.is_complete
                self._proxied.response_started = True
                busy = writer.start_response(response.status, self._client_headers(), self._withheld, more)
            else:
                # The silence has lasted `keepalive_secs`. With the head sent, the request can be neither retried nor refused.
                self._proxied.response_started = True
                busy = writer.start_response(response.status, self._client_headers(), sse.KEEPALIVE_COMMENT, True)
                if busy is not None:
                    await busy
                await self._read_until_data()
                self._note_first_data_sent()
                more = not response.is_complete
                busy = writer.send_piece(self._withheld, more)
            if busy is not None:
                await busy
            if more:
                await response.pipe_body(self._piece_writer(writer))
        finally:
            if keepalive is not None:
                keepalive.stop()

    async def _read_until_data(self) -> None:
        """Read the body up to its first data; or all of it, if it has none."""
        response = self._response
        while not (response.is_complete or sse.has_data(self._withheld) or len(self._withheld) >= MAX_WITHHELD_BYTES):
            self._withheld += await self._read_piece()
        self._note_first_data()

    def _note_first_data(self) -> None:
        self._has_data = True
        self._record.on_first_data(self._withheld)

    def _note_first_data_sent(self) -> None:
        record, step = self._record, self._proxied.step
        if step is not None:
            step.first_data_at = record.first_data_at
        record.on_first_data_sent()

    async def _read_piece(self) -> bytes:
        """Return the next piece of the body as the client will get it. Raises UpstreamError."""
        piece = await self._response.read_piece()
        return piece if self.reader is None else self.reader.take(piece, more=not self._response.is_complete)

    def _client_headers(self) -> Headers:
        """Return the headers of the response for the client, with a request id if the backend set none."""
        headers = self._end_to_end_headers()
        if self._response.status in (204, 304):  # Such a response has no body, whatever its head says.
            headers = [header for header in headers if header[0] != b"content-length"]
        if self.reader is not None and self.reader.changes_body:
            headers = [header for header in headers if header[0] not in _HEADERS_FIXING_BODY]
        for name, _ in headers:
            if name == REQUEST_ID_HEADER:
                return headers
        headers.append((REQUEST_ID_HEADER, self._proxied.request_id))
        return headers

    def _end_to_end_headers(self) -> Headers:
        """Return the headers that are meant for the client. Which they are is kept with a head that is known."""
        headers, memo = self._response.headers, self._response.memo
        if memo is None:
            return end_to_end_headers(headers)
        places = memo.value
        if not isinstance(places, list):
            kept = {name for name, _ in end_to_end_headers(headers)}
            memo.value = places = [place for place, (name, _) in enumerate(headers) if name in kept]
        return [headers[place] for place in places]

    def _piece_writer(self, writer: ResponseWriter) -> PieceWriter:
        """Return what sends a piece of the body as soon as it arrives, without waking a task."""
        reader, send = self.reader, writer.send_piece
        on_data = self._record.on_stream_piece if self._is_stream else self._record.on_body_piece
        if reader is None:

            def observe(piece: bytes, more: bool) -> asyncio.Future[None] | None:
                on_data(piece)
                return send(piece, more)

            return observe

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            on_data(piece)
            piece = reader.take(piece, more=more)
            return None if more and not piece else send(piece, more)

        return write


class SseKeepalive:
    """Stands between a response and its writer. Begins with the head of the response, and must be stopped."""

    def __init__(self, writer: ResponseWriter, secs: float) -> None:
        """`secs` is the silence in seconds after which a comment is sent, more than 0."""
        self._writer = writer
        self._secs = secs
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_sent = 0.0
        self._tail = b"\n\n"
        """The last bytes of the body."""
        self._busy: asyncio.Future[None] | None = None
        """Done when the client has taken what was sent last, or None if it has."""

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send the beginning of a response, and measure silence from then on."""
        self._timer = self._loop.call_later(self._secs, self._on_timer)
        self._note_sent(piece)
        self._busy = self._writer.start_response(status, headers, piece, more)
        return self._busy

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send a piece, and measure silence from then on."""
        if more:
            self._note_sent(piece)
        else:
            self.stop()
        self._busy = self._writer.send_piece(piece, more)
        return self._busy

    def stop(self) -> None:
        """Send no more comments. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        # A piece only notes its time, and the timer is set again when it rings: a stream of tokens sets hardly any.
        silence_left = self._last_sent + self._secs - self._loop.time()
        if silence_left <= 0:
            self._send_comment()
            silence_left = self._secs
        self._timer = self._loop.call_later(silence_left, self._on_timer)

    def _note_sent(self, piece: bytes) -> None:
        self._tail = (self._tail + piece[-_MAX_EVENT_END_BYTES:])[-_MAX_EVENT_END_BYTES:]
        self._last_sent = self._loop.time()

    def _send_comment(self) -> None:
        """Send a comment if the body stands between two events and the client has taken all that was sent before."""
        is_client_ready = self._busy is None or self._busy.done()
        if is_client_ready and self._tail.endswith(sse.EVENT_ENDS):
            self._last_sent = self._loop.time()
            self._busy = self._writer.send_piece(sse.KEEPALIVE_COMMENT, True)


def allows_comments(headers: Headers) -> bool:
    """Return whether comments can be added to a body with these headers: its length must be open and its bytes not encoded."""
    return not any(name in _HEADERS_FIXING_BODY for name, _ in headers)
