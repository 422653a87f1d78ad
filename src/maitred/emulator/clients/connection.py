"""LoadConnection: one connection of a load, and the response that it carries, in as few steps as possible.

`wire.client_framing` says where a response ends, and `answers` which tokens have come. A stream of tokens is one small piece
after another, and looking into each when it comes would cost more than everything else. So

    1. the body of a stream in chunks is skipped by the parser, and its tokens are counted in the reads as they came, since the
       framing of chunks does no harm there;
    2. once the first token is there, reads are only gathered, with the instants at which they came. They are counted and
       parsed together when one ends as the last chunk does, is unusually large, or when `_MAX_GATHERED` are there.

Any other response (an error, an answer that does not stream or whose text is kept) is parsed at once, with its body. Which of
the two it is shows in the head, so a stream that was expected and did not come is parsed again from its first byte.

Example: a head and 50 events in 50 reads, then the last chunk. The framing sees the first read, and then all others at once;
the answer sees the first read as it comes, and then all others at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Final, cast

from maitred.core.units import Micros
from maitred.emulator.clients.answers import Answer
from maitred.wire.client_framing import ClientFraming
from maitred.wire.messages import END, FramingError, Headers, ResponseHead, State
from maitred.wire.sockets import write_message
from maitred.wire.sse import is_event_stream

_MAX_HEAD: Final = 65_536
_MAX_GATHERED: Final = 256
_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = _HEAD_END
_SHORT: Final = 8
"""Bytes of a read that may be the rest of the last chunk."""
_LARGE: Final = 16_384
"""Bytes of a read after which all is parsed, so that little memory is held."""


class LoadConnection(asyncio.Protocol):
    """One connection. Call `send` while it `is_idle`; `on_response` is called once for each request."""

    def __init__(
        self, instants_of: Callable[[Sequence[int]], list[Micros]], on_closed: Callable[[LoadConnection], object]
    ) -> None:
        """`instants_of` turns values of `time.monotonic_ns` into µs since the start of the run. `on_closed` is called once."""
        self._instants_of = instants_of
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._framing = ClientFraming(_MAX_HEAD)
        self._on_response: Callable[[str], object] | None = None
        self._answer: Answer
        self._gathered: list[bytes] = []
        """Reads that are not counted and parsed yet."""
        self._came_at: list[int] = []
        """When the reads of `_gathered` came, in ns."""
        self._expects_stream = False
        """Whether the body of the present response is skipped, because a stream is expected."""
        self._gathers = False
        """Whether reads are only gathered, to be counted and parsed later."""
        self._head = b""
        """What has come of a response whose body is skipped, until its head is complete."""
        self.status = 0
        """Status of the present response; 0 before its head."""
        self.headers: Headers = []
        self.num_responses = 0
        """Responses that it has carried."""

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._transport is not None and self._on_response is None and not self._transport.is_closing()

    def send(
        self,
        target: str,
        authority: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        answer: Answer,
        on_response: Callable[[str], object],
        *,
        expects_stream: bool,
    ) -> None:
        """Send a request. `on_response` gets "" when the whole response has come, or else what went wrong. With
        `expects_stream` the answer is told of a stream as it was read, with the framing of its chunks."""
        assert self._transport is not None
        head = self._framing.send_request("POST", target, authority, headers, len(body), skips_body=expects_stream)
        self._answer, self._on_response = answer, on_response
        self.status, self.headers, self._head = 0, [], b""
        self._expects_stream = expects_stream
        write_message(self._transport, head, body)

    def count_gathered(self) -> None:
        """Tell the answer of all that has come."""
        if self._gathered:
            gathered, came_at = self._gathered, self._came_at
            self._gathered, self._came_at = [], []
            self._answer.on_pieces(gathered, self._instants_of(came_at))

    def close(self) -> None:
        """Close the connection; a request that it carries ends."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._gathers:
            self._gathered.append(data)
            self._came_at.append(monotonic_ns())
            if data.endswith(_LAST_CHUNK) or not _SHORT <= len(data) <= _LARGE or len(self._gathered) == _MAX_GATHERED:
                self._parse_gathered()
        elif self._on_response is None:
            self.close()
        elif self._expects_stream:
            self._begin_stream(data)
        else:
            self._handle(self._framing.receive_data(data))

    def eof_received(self) -> None:
        if self._on_response is not None:
            self._parse_gathered()
            self._handle(self._framing.receive_eof())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._framing.close()
        self._end("the connection was closed before the end of the response")
        self._on_closed(self)

    def _now(self) -> Micros:
        return self._instants_of((monotonic_ns(),))[0]

    def _begin_stream(self, data: bytes) -> None:
        """Take a read of a response whose body is skipped, before its first token."""
        events = self._framing.receive_data(data)
        if not self.status:
            self._head += data
            data = b""
            if events and type(events[0]) is ResponseHead:
                if not _is_stream_in_chunks(events[0]):
                    self._parse_again()
                    return
                self.status, self.headers = events[0].status, events[0].headers
                data = self._head[self._head.index(_HEAD_END) + len(_HEAD_END) :]
        if data:
            self._answer.on_piece(data, self._now())
            self._gathers = bool(self._answer.instants)
        self._handle(events)

    def _parse_again(self) -> None:
        """Parse what has come of a response with its body, which is needed after all."""
        self._framing.close()
        self._expects_stream, self._framing = False, ClientFraming(_MAX_HEAD)
        self._framing.send_request("POST", "/", "", (), 0)
        self._handle(self._framing.receive_data(self._head))

    def _parse_gathered(self) -> None:
        gathered = b"".join(self._gathered)
        self.count_gathered()
        if gathered and self._on_response is not None:
            self._handle(self._framing.receive_data(gathered))

    def _handle(self, events: Sequence[object]) -> None:
        now = 0
        for event in events:
            if type(event) is bytes:
                now = now or self._now()
                self._answer.on_piece(event, now)
            elif type(event) is ResponseHead:
                self.status, self.headers = event.status, event.headers
            elif event is END:
                self._answer.on_whole(self._now())
                self._finish()
                return
            else:
                self.close()
                self._end(str(cast(FramingError, event)))
                return

    def _finish(self) -> None:
        transport, framing = self._transport, self._framing
        self.num_responses += 1
        if framing.peer is not State.DONE or transport is None or transport.is_closing() or transport.get_write_buffer_size():
            self.close()
        else:
            framing.next_exchange()
        self._end("")

    def _end(self, problem: str) -> None:
        self.count_gathered()
        self._gathers = False
        on_response, self._on_response = self._on_response, None
        if on_response is not None:
            on_response(problem)


def _is_stream_in_chunks(head: ResponseHead) -> bool:
    is_chunked = any(name == b"transfer-encoding" for name, _ in head.headers)
    return is_chunked and head.status == 200 and is_event_stream(head.headers)
