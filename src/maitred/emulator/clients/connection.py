"""LoadConnection: one connection of a load, and the response that it carries, in as few steps as possible.

`wire.client_framing` says where a response and its body end, and `answers` which tokens have come. A stream of tokens is one
small piece after another, and to look into each when it comes would cost more than everything else. So once the first token of
a stream in chunks is there, reads are only gathered, with the instants at which they came. They are counted together when one
ends as the last chunk does, is unusually small or large, or when `_MAX_GATHERED` are there: those that are whole events in
whole chunks by a search in the reads (`Answer.count_plain`), and all others event by event, without the framing.

Example: a head and 50 events in 50 reads, then the last chunk. The answer sees the first read as it comes, and then all others
at once.
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
        """Reads that are not counted and parsed yet."""
        self._came_at: list[int] = []
        """When the reads of `_gathered` came, in ns."""
        self._may_gather = False
        """Whether the present response is a stream in chunks whose text is not kept."""
        self._gathers = False
        """Whether reads are only gathered, to be counted and parsed later."""
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
    ) -> None:
        """Send a request. `on_response` gets "" when the whole response has come, or else what went wrong."""
        assert self._transport is not None
        head = self._framing.send_request("POST", target, authority, headers, len(body))
        self._answer, self._on_response = answer, on_response
        self.status, self.headers, self._may_gather = 0, [], False
        write_message(self._transport, head, body)

    def count_gathered(self) -> None:
        """Tell the answer of all that has come."""
        reads, came_at = self._gathered, self._came_at
        if not reads:
            return
        self._gathered, self._came_at = [], []
        instants = self._instants_of(came_at)
        counted = self._answer.count_plain(reads, instants)
        if counted:
            self._handle([event for event in self._framing.receive_data(b"".join(reads[:counted])) if type(event) is not bytes])
        for read, now in zip(reads[counted:], instants[counted:], strict=True):
            if self._on_response is None:  # Something follows the response.
                self.close()
                return
            self._handle(self._framing.receive_data(read), now)

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
                self.count_gathered()
        elif self._on_response is None:
            self.close()
        else:
            self._handle(self._framing.receive_data(data))
            self._gathers = self._may_gather and bool(self._answer.instants)

    def eof_received(self) -> None:
        if self._on_response is not None:
            self.count_gathered()
            self._handle(self._framing.receive_eof())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._framing.close()
        self._end("the connection was closed before the end of the response")
        self._on_closed(self)

    def _handle(self, events: Sequence[object], now: Micros | None = None) -> None:
        """Take the events of a read that came at `now`; None: just now."""
        for event in events:
            now = self._instants_of((monotonic_ns(),))[0] if now is None else now
            if type(event) is bytes:
                self._answer.on_piece(event, now)
            elif type(event) is ResponseHead:
                self._begin(event)
            elif event is END:
                self._answer.on_end(now)
                self._finish()
                return
            else:
                self.close()
                self._end(str(cast(FramingError, event)))
                return

    def _begin(self, head: ResponseHead) -> None:
        self.status, self.headers = head.status, head.headers
        self._answer.begin(head.status, head.headers)
        is_chunked = any(name == b"transfer-encoding" for name, _ in head.headers)
        self._may_gather = is_chunked and self._answer.is_stream and not self._answer.keeps_text

    def _finish(self) -> None:
        self._may_gather = False
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
