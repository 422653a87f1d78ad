"""Forward the response of a backend to the client.

The head of a streamed response is withheld until the first data of its body, a whole line of it, which may be an error;
comments that only keep the stream alive are no data. Until then the client has received nothing, so the request can still go to
another backend, wait again, or be preempted.

A stream that breaks off after its head, because its backend has died, takes too long, or the gateway shuts down, ends with the
error as its last event, in the words of its API (`stream_dialects`). An event is one only between two others. So if the stream
stands in the middle of an event, it is left without an end, and the server cuts the connection.

    b"data: {...}\\n\\n"  then the backend dies   -> b'data: {"error": ...}\\n\\n', the end
    b"data: {..."        then the backend dies   -> the connection is cut
    b"data: [DONE]\\n\\n" then the backend dies   -> the end

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from maitred.gateway import error_responses
from maitred.gateway.bodies.answer_usage import AnswerReader
from maitred.gateway.bodies.request_fields import DECISION_HEADER, REQUEST_ID_HEADER, end_to_end_headers
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.gateway.forwarding.retries import cap_retry_after
from maitred.gateway.forwarding.stream_dialects import dialect_of
from maitred.gateway.forwarding.waiting_stream import is_open_ended
from maitred.gateway.observe.request_ids import MESSAGES_ID_HEADER, OWN_ANSWER_HEADERS
from maitred.gateway.observe.request_record import RequestRecord
from maitred.wire import sse
from maitred.wire.answer_errors import AnswerError
from maitred.wire.errors import UpstreamError
from maitred.wire.exchange import ApiError, ResponseWriter, is_messages_path, send_error
from maitred.wire.messages import Headers
from maitred.wire.refusals import internal_error
from maitred.wire.response import PieceWriter, UpstreamResponse

MAX_WITHHELD_BYTES: Final = 16_384
"""Size of what has come of a stream above which the head is sent without waiting for data."""
_OK: Final = 200
_BAD_REQUEST: Final = 400
_LARGE_PIECE_BYTES: Final = 64 * 1024
"""Size of a piece behind which the next one waits for the next turn of the event loop. uvloop reads up to 8 MiB in a turn, and
all pieces are looked into."""
_PLAIN: Final = (b"", b"identity")
_HEADERS_FIXING_BODY: Final = frozenset((b"content-length", b"content-encoding"))


class _ClientPart:
    """What a client receives of the head of an answer. It is kept with a head that is known."""

    __slots__ = ("is_encoded", "places")

    def __init__(self, headers: Headers) -> None:
        kept = {name for name, _ in end_to_end_headers(headers)} - OWN_ANSWER_HEADERS
        places = [place for place, (name, _) in enumerate(headers) if name in kept]
        self.places = None if len(places) == len(headers) else places
        """Where its headers are, or None if it has all of them; what a backend says of itself under the names of
        `OWN_ANSWER_HEADERS` is not among them."""
        self.is_encoded = any(name == b"content-encoding" and value.strip() not in _PLAIN for name, value in headers)
        """Whether the body is compressed."""


class ResponseForwarder:
    """One response on its way. First `wait_for_data`; then, if the client may receive it, `forward`.

    Most answers come whole: then `take_arrived` has all of it, and nothing is to be waited for.
    """

    __slots__ = (
        *("_first_sent", "_has_data", "_is_stream", "_last_sent", "_proxied", "_record", "_response", "_sent_before"),
        *("_withheld", "_writer", "reader"),
    )

    def __init__(
        self,
        proxied: ProxyRequest,
        response: UpstreamResponse,
        writer: ResponseWriter,
        record: RequestRecord,
    ) -> None:
        """`record` is told of each piece of the answer as it comes; of a stream, from its first data on."""
        self._proxied = proxied
        self._response = response
        self._writer = writer
        self._is_stream = proxied.request.stream and sse.is_event_stream(response.headers)
        if self._is_stream and proxied.waiting_stream is not None:
            proxied.waiting_stream.on_stream_head(response.headers)
        self.reader: AnswerReader | None = None
        """What reads the usage, if it is of interest; set before `wait_for_data`."""
        record.is_stream = self._is_stream
        self._record = record
        self._withheld = b""
        """The part of the body that was received and not sent yet, as the client will get it."""
        self._has_data = False

    @property
    def withheld(self) -> bytes:
        """What has come of the body, and has not been sent yet."""
        return self._withheld

    @property
    def arrived(self) -> bytes:
        """What has come of the body, and has not been sent yet, with the beginning of an event whose end comes as a piece by
        itself."""
        return self._withheld if self.reader is None else self._withheld + self.reader.held_back

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
            self._withheld = arrived = self._response.take_arrived()
            if arrived:
                self._has_data = True
                self._record.on_first_data(arrived)
        return self._has_data

    async def wait_for_data(self) -> None:
        """Return when there is something to send: data, or the end of the body. Raises UpstreamError."""
        if self._is_stream:
            await self._read_until_data()
            return
        self._withheld = await self._read_piece()
        while not (self._withheld or self._response.is_complete()):  # the head of a gzip, perhaps
            self._withheld = await self._read_piece()
        self._note_first_data()

    async def wait_for_words(self) -> None:
        """Return when an error of the backend has come whole, or as much of it as is withheld. Raises UpstreamError."""
        while not (self._is_stream or self._response.is_complete() or len(self._withheld) >= MAX_WITHHELD_BYTES):
            piece = await self._read_piece()
            self._withheld += piece
            self._record.on_body_piece(piece)
            self._record.last_data_at = self._record.clock.now()  # The request goes on from there.

    def forward(self) -> Awaitable[None] | None:
        """Send the whole response. Return what must be awaited for the rest of it, or None if all was sent. Awaiting raises
        UpstreamError if it breaks off."""
        more, status, record = not self._response.is_complete(), self._response.status, self._record
        record.status = status
        if self._proxied.memory_lease is not None:
            self._proxied.memory_lease.first_data_at = record.first_data_at
        record.on_first_data_sent()
        part = self._client_part()
        if part.is_encoded and status == _OK and self._is_opaque(part):
            record.is_unreadable = not record.route.asks_each  # What is stored is not asked to be plain.
        busy = self._writer.start_response(status, self._client_headers(part), self._withheld, more)
        if self.reader is not None and not more:
            self._note_usage(self.reader)
        return self._forward_rest(busy) if more else busy

    async def _forward_rest(self, busy: Awaitable[None] | None) -> None:
        """Send what follows the first piece of the body, when the client has taken that (`busy`)."""
        self._first_sent = self._last_sent = self._withheld
        self._sent_before = b""
        """The first and the last two pieces of the body that the client was sent."""
        try:
            if busy is not None:
                await busy
            await self._response.pipe_body(self._piece_writer(self._writer))
        except UpstreamError as error:
            self._break_off(error_responses.upstream_failed(error))
            raise
        except asyncio.CancelledError:
            self._break_off(error_responses.shutting_down())  # A client that has left is sent nothing.
            raise
        except Exception:
            self._break_off(internal_error("gateway"))
            raise
        finally:
            if self.reader is not None:
                self._note_usage(self.reader)

    def _note_usage(self, reader: AnswerReader) -> None:
        self._record.reported = reader.usage
        if self._proxied.memory_lease is not None:
            self._proxied.memory_lease.usage = reader.usage

    def _break_off(self, error: ApiError) -> None:
        """End a stream that does not come whole, if it stands between two events: with one that says why, unless the client
        has its own end."""
        proxied, waiting = self._proxied, self._proxied.waiting_stream
        if waiting is not None and waiting.keeps_answer:
            send_error(waiting, error, proxied.path)
            return
        tail = self._sent_before + self._last_sent
        is_open = (
            self._is_stream and not self._response.is_complete() and is_open_ended(self._client_headers(self._client_part()))
        )
        if is_open and tail.endswith(sse.EVENT_ENDS):
            dialect = dialect_of(proxied.route.path)
            is_whole = dialect.has_ended(tail)
            self._writer.send_piece(b"" if is_whole else dialect.refusal_event(error, self._first_sent + tail), False)

    async def _read_until_data(self) -> None:
        """Read the body up to its first data; or all of it, if it has none."""
        response = self._response
        while not (response.is_complete() or self._may_begin() or len(self._withheld) >= MAX_WITHHELD_BYTES):
            self._withheld += await self._read_piece()
        self._note_first_data()

    def _may_begin(self) -> bool:
        """Return whether what has come of a stream has data, or is compressed, so that nobody can see whether it has."""
        return sse.has_data(self._withheld) or (self._withheld != b"" and self._is_opaque(self._client_part()))

    def _is_opaque(self, part: _ClientPart) -> bool:
        return part.is_encoded and (self.reader is None or self.reader.is_opaque)

    def _note_first_data(self) -> None:
        self._has_data = True
        self._record.on_first_data(self._withheld if self.reader is None else self.arrived)

    async def _read_piece(self) -> bytes:
        """Return the next piece of the body as the client will get it. Raises UpstreamError."""
        piece = await self._response.read_piece()
        reader, more = self.reader, not self._response.is_complete()
        return piece if reader is None else reader.take(reader.decode(piece, more=more), more=more)

    def _client_headers(self, part: _ClientPart) -> Headers:
        """Return the headers of the response for the client, with the request id of the gateway."""
        received, status, proxied = self._response.headers, self._response.status, self._proxied
        headers = received.copy() if part.places is None else [received[place] for place in part.places]
        if status != _OK:
            if status >= _BAD_REQUEST:
                headers = cap_retry_after(headers, self._record.clock.wall())
            elif status in (204, 304):  # Such a response has no body, whatever its head says.
                headers = [header for header in headers if header[0] != b"content-length"]
        if self.reader is not None and self.reader.changes_body:
            headers = [header for header in headers if header[0] not in _HEADERS_FIXING_BODY]
        if is_messages_path(proxied.path):
            headers = [header for header in headers if header[0] != MESSAGES_ID_HEADER]
            headers.append((MESSAGES_ID_HEADER, proxied.request_id))
        headers.append((REQUEST_ID_HEADER, proxied.request_id))
        told = proxied.told_headers
        if told is not None:  # An engine that is a provider with limits of its own tells those of our key there.
            names = {name for name, _ in told}
            headers = [*(header for header in headers if header[0] not in names), *told]
        headers.append(self._record.queue_header)
        if proxied.explanation is not None:
            headers.append((DECISION_HEADER, proxied.explanation.in_words(proxied)))
        return headers

    def _client_part(self) -> _ClientPart:
        """Return the part of the head that the client receives."""
        headers, memo = self._response.headers, self._response.memo
        if memo is None:
            return _ClientPart(headers)
        known = memo.value
        if not isinstance(known, _ClientPart):
            memo.value = known = _ClientPart(headers)
        return known

    def _piece_writer(self, writer: ResponseWriter) -> PieceWriter:
        """Return the function that sends each piece of the body as soon as it arrives, without waking a task."""
        reader, send = self.reader, writer.send_piece
        on_data = self._record.on_stream_piece if self._is_stream else self._record.on_body_piece
        if reader is None:

            def observe(piece: bytes, more: bool) -> asyncio.Future[None] | None:
                on_data(piece)
                self._sent_before, self._last_sent = self._last_sent, piece
                busy = send(piece, more)
                return busy if len(piece) < _LARGE_PIECE_BYTES or busy is not None else _next_turn()

            return observe

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            taken = len(piece)
            piece = reader.decode(piece, more=more)
            on_data(piece)
            piece = reader.take(piece, more=more)
            busy: asyncio.Future[None] | None = None
            if piece or not more:
                self._sent_before, self._last_sent = self._last_sent, piece
                busy = send(piece, more)
            return busy if taken < _LARGE_PIECE_BYTES or busy is not None else _next_turn()

        return write


def _next_turn() -> asyncio.Future[None]:
    """Return a future that is done in the next turn of the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_set_done, future)
    return future


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
