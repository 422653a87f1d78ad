"""A response with a body that is still arriving: read it in pieces, or have it written through.

    source --on_body()--> UpstreamResponse --read_piece()------> a task        reading pauses at `high_water` bytes
                                           --pipe_body(write)--> write(piece)  reading pauses while `write` is pending

`pipe_body` exists because a stream of tokens is one small piece after another: calling `write` where the piece arrives saves
the wake-up of a task for each of them. Either way, pieces that arrive together are handed over as one.

Example: `high_water` is 64 KiB, and four pieces of 16 KiB arrive before the task reads. Reading pauses; `read_piece` then
returns all 64 KiB at once, and reading resumes. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

from maitred.wire.errors import Truncated
from maitred.wire.messages import Headers, HeadMemo, ResponseHead

PieceWriter: TypeAlias = Callable[[bytes, bool], "asyncio.Future[None] | None"]
"""`write(piece, more)` takes a piece; `more` is False for the last one, which may be empty. Returns None, or a future that is
done when the next piece may be written."""


class ResponseSource(Protocol):
    """Where a response comes from: a connection, or a task that reads one."""

    def pause_reading(self) -> None:
        """Stop reading from the upstream."""
        ...

    def resume_reading(self) -> None:
        """Read on."""
        ...

    def abort(self) -> None:
        """Close the connection at once, and call the response no more."""
        ...


class UpstreamResponse:
    """The response to one request. Its source calls the `on_` methods; its owner must read it to the end or `close` it."""

    # Slots, as in `Exchange`.
    __slots__ = (
        *("_body_received", "_body_written", "_buffer", "_buffered", "_has_failed", "_high_water", "_is_reading_paused"),
        *("_loop", "_pending_write", "_source", "_waiter", "_write", "error", "head", "headers", "memo", "status"),
    )

    def __init__(self, source: ResponseSource, high_water: int, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Headers = []
        self.memo: HeadMemo | None = None
        """That of the head, if the response came whole under a head that is kept."""
        self._source: ResponseSource | None = source
        self._high_water = high_water
        self._loop = loop
        self.head: asyncio.Future[None] = loop.create_future()
        """Done when the head has come, or an error instead of it."""
        self._buffer: list[bytes] = []
        self._buffered = 0
        """Bytes in the buffer."""
        self._is_reading_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._write: PieceWriter | None = None
        self._pending_write: asyncio.Future[None] | None = None
        self._body_received = self._body_written = self._has_failed = False
        """Whether the whole body has arrived; whether it was written through; whether the rest will not arrive."""
        self.error: BaseException | None = None
        """Why the rest will not arrive; None once that was raised."""

    def is_complete(self) -> bool:
        """Whether the whole body has arrived and been read."""
        return self._body_received and not self._buffer

    async def wait_for_head(self) -> UpstreamResponse:
        """Return the response itself when `status` and `headers` are known. Raises UpstreamError.

        If this call is cancelled, the response is closed.
        """
        try:
            await self.head
        except asyncio.CancelledError:
            self.close()
            raise
        if not self.status:
            raise self.take_error()
        return self

    def take_arrived(self) -> bytes:
        """Return what has arrived since the last call; b"" if nothing has."""
        if not self._buffer:
            return b""
        piece = self._take_buffered()
        if self._is_reading_paused:
            self._resume_reading()
        return piece

    async def read_piece(self) -> bytes:
        """Return what has arrived since the last call, or else the next piece; b"" at the end. Raises UpstreamError."""
        while not self._buffer:
            if self._has_failed:
                raise self.take_error()
            if self._body_received:
                return b""
            await self._new_waiter()
        return self.take_arrived()

    def __aiter__(self) -> UpstreamResponse:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.read_piece()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def pipe_body(self, write: PieceWriter) -> None:
        """Give the rest of the body to `write`, piece by piece as it arrives, and return when `write` has taken the end.

        Raises UpstreamError after all pieces that arrived before the failure, without telling `write` of an end; and what
        `write` or its future raises.
        """
        self._write = write
        if self._buffer or self._body_received:
            self._write_buffered()
        while self._pending_write is not None or not self._body_written:
            if self._has_failed and self._pending_write is None:
                raise self.take_error()
            await self._new_waiter()

    def close(self) -> None:
        """Drop the rest of the response; if there is any, its connection is closed at once. Idempotent."""
        source, self._source = self._source, None
        self._write = None
        if source is not None:
            source.abort()

    def on_head(self, status: int, headers: Headers) -> None:
        """Take the head of the response."""
        self.status, self.headers = status, headers
        if not self.head.done():
            self.head.set_result(None)

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take a response of which nothing had come, and now all has; the source is free then."""
        self.status, self.headers, self.memo = head.status, head.headers, head.memo
        self._buffer.append(body)
        self._buffered, self._body_received, self._source = len(body), True, None
        if not self.head.done():
            self.head.set_result(None)

    def on_body(self, data: bytes, more: bool) -> None:
        """Take a piece of the body. `more` is False with the last one, which may be empty; the source is free then."""
        write = self._write
        if write is not None and more and self._pending_write is None:  # The usual case of a stream, and all that it costs.
            self._write_piece(write, data)
            return
        # A source that was told to pause reading may still deliver what it had read.
        if data:
            self._buffer.append(data)
            self._buffered += len(data)
        if not more:
            self._body_received = True
            self._source = None
        if write is None:
            if self._buffered >= self._high_water:
                self._pause_reading()
            self._wake()
        elif self._pending_write is None:
            self._write_buffered()

    def on_error(self, error: Exception) -> None:
        """Take note that the rest of the response will not arrive. What has arrived is still handed over."""
        self._source = None
        self._has_failed, self.error = True, error
        if not self.head.done():
            self.head.set_result(None)
        self._wake()

    def take_error(self) -> BaseException:
        """Return why the rest will not arrive, and keep it no longer: once raised, it refers to the frames that refer to this
        response, and with it to the request."""
        error, self.error = self.error, None
        return error or Truncated("the response has broken off before")

    def _take_buffered(self) -> bytes:
        buffer = self._buffer
        piece = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._buffered = 0
        return piece

    def _write_buffered(self) -> None:
        assert self._write is not None
        self._body_written = self._body_received
        self._write_piece(self._write, self._take_buffered())
        if self._pending_write is None and (self._body_written or self._has_failed):
            self._wake()

    def _write_piece(self, write: PieceWriter, piece: bytes) -> None:
        try:
            busy = write(piece, not self._body_received)
        except Exception as error:
            self._fail(error)
            return
        if busy is not None:
            self._pending_write = busy
            self._pause_reading()
            busy.add_done_callback(self._on_written)

    def _on_written(self, busy: asyncio.Future[None]) -> None:
        self._pending_write = None
        if busy.cancelled() or busy.exception() is not None:
            self._fail(asyncio.CancelledError() if busy.cancelled() else busy.exception())
        elif self._write is not None and (self._buffer or self._body_received > self._body_written):
            self._write_buffered()
        else:
            self._resume_reading()
            self._wake()

    def _fail(self, error: BaseException | None) -> None:
        self.close()
        self._has_failed, self.error = True, error
        self._wake()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and self._source is not None:
            self._is_reading_paused = True
            self._source.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            if self._source is not None:
                self._source.resume_reading()

    def _new_waiter(self) -> asyncio.Future[None]:
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
