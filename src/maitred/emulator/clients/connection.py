"""LoadConnection: one connection of a load, and the response that it carries, in as few steps as possible.

`wire.client_framing` says where a response ends, and `answers` which tokens have come. A stream of tokens is one small piece
after another, and looking into each when it comes would cost more than everything else. So the pieces of a stream in chunks are
gathered with the instants at which they came, once its first token is there. They are counted and parsed together when one ends
as the last chunk does, is unusually large, or when `_MAX_GATHERED` are there. Whatever else a server sends is parsed at once.

Example: a head and 50 events in 50 reads, then the last chunk. The framing sees the first read, and then all others at once;
the answer sees the first two as they come, and then all others at once.
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
_LAST_CHUNK: Final = b"\r\n\r\n"
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
        """Pieces of the response that are not parsed yet."""
        self._uncounted: list[bytes] = []
        """The last pieces of `_gathered`, whose tokens are not counted yet."""
        self._came_at: list[int] = []
        """When the pieces of `_uncounted` came, in ns."""
        self._may_count_raw = False
        self._counts_raw = False
        """Whether pieces are counted before they are parsed."""
        self._gathers = False
        """Whether pieces are only gathered, to be counted and parsed later."""
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
        keeps_text: bool,
    ) -> None:
        """Send a request. `on_response` gets "" when the whole response has come, or else what went wrong."""
        assert self._transport is not None
        head = self._framing.send_request("POST", target, authority, headers, len(body))
        self._answer, self._on_response = answer, on_response
        self.status, self.headers = 0, []
        self._may_count_raw = not keeps_text
        write_message(self._transport, head, body)

    def count_gathered(self) -> None:
        """Tell the answer of all that has come."""
        if self._uncounted:
            uncounted, came_at = self._uncounted, self._came_at
            self._uncounted, self._came_at = [], []
            self._answer.on_pieces(uncounted, self._instants_of(came_at))

    def close(self) -> None:
        """Close the connection; a request that it carries ends."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._gathers:
            self._uncounted.append(data)
            self._came_at.append(monotonic_ns())
            is_end = data.endswith(_LAST_CHUNK) or not _SHORT <= len(data) <= _LARGE
            if is_end or len(self._uncounted) == _MAX_GATHERED:
                self._parse_gathered()
        elif self._on_response is None:
            self.close()
        elif self._counts_raw:
            self._answer.on_piece(data, self._now())
            self._gathered.append(data)
            self._gathers = bool(self._answer.instants)
            if data.endswith(_LAST_CHUNK) or not _SHORT <= len(data) <= _LARGE or len(self._gathered) == _MAX_GATHERED:
                self._parse_gathered()
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

    def _parse_gathered(self) -> None:
        gathered = b"".join((*self._gathered, *self._uncounted))
        self.count_gathered()
        self._gathered.clear()
        if gathered and self._on_response is not None:
            self._handle(self._framing.receive_data(gathered))

    def _handle(self, events: Sequence[object]) -> None:
        now = 0
        # Pieces that were counted say nothing more: only their end does, which comes last.
        for event in events[-1:] if self._counts_raw else events:
            if type(event) is bytes:
                if not self._counts_raw:
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
        # From the read after the head on.
        if self._may_count_raw and self.status == 200 and not self._counts_raw:
            chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
            self._counts_raw = chunked and is_event_stream(self.headers)
            self._may_count_raw = False

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
        self._gathered.clear()
        self._counts_raw = self._gathers = False
        on_response, self._on_response = self._on_response, None
        if on_response is not None:
            on_response(problem)
