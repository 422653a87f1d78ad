"""A response whose body is still coming: read it by pieces, or have it written through.

    source --on_body()--> Response --read()-----> whoever awaits      the source pauses at `high_water` bytes
                                   --pipe(write)--> write(piece)      the source pauses while `write` is busy

`pipe` exists because a stream of tokens is one small piece after another: calling `write` from where the piece arrives spares
each of them the wake-up of a task. Pieces that arrive together are handed on as one, either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeAlias

from maitred.wire.asgi import Headers

PieceWriter: TypeAlias = Callable[[bytes, bool], "asyncio.Future[None] | None"]
"""`write(piece, more)`: take a piece; `more` is False with the last one, which may be empty. Not None: busy until then."""


class ResponseSource(Protocol):
    """What a response comes from."""

    def pause(self) -> None:
        """Nobody would read what comes."""
        ...

    def resume(self) -> None: ...

    def abort(self) -> None:
        """Close at once; tell the response nothing more."""
        ...


class UpstreamResponse:
    """The answer to one request. Whoever has it must read it to the end or `close` it."""

    __slots__ = (
        "_body_received",
        "_body_written",
        "_buffer",
        "_buffered",
        "_error",
        "_head",
        "_high_water",
        "_loop",
        "_paused",
        "_pending_write",
        "_source",
        "_waiter",
        "_write",
        "headers",
        "status",
    )

    def __init__(self, source: ResponseSource, high_water: int, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Headers = []
        self._source: ResponseSource | None = source
        self._high_water = high_water
        self._loop = loop
        self._head: asyncio.Future[None] = loop.create_future()
        self._waiter: asyncio.Future[None] | None = None
        self._write: PieceWriter | None = None
        self._pending_write: asyncio.Future[None] | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._body_received = False  # all of the body has come
        self._body_written = False  # and all of it was written through
        self._error: BaseException | None = None

    # For the reader

    @property
    def is_complete(self) -> bool:
        """Whether all of the body has come and been read."""
        return self._body_received and not self._buffer

    async def wait_for_head(self) -> UpstreamResponse:
        """Itself, as soon as `status` and `headers` are there. If this is cancelled it is closed. Raises UpstreamError."""
        try:
            await self._head
        except asyncio.CancelledError:
            self.close()
            raise
        return self

    async def read_piece(self) -> bytes:
        """All that has come since the last read, or the next piece to come; b"" at the end. Raises UpstreamError."""
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._body_received:
                return b""
            await self._new_waiter()
        piece = self._take_buffered()
        self._resume()
        return piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read_piece():
            yield piece

    async def pipe_body(self, write: PieceWriter) -> None:
        """Hand all that is still to come to `write`, and return when it has taken the end.

        Raises UpstreamError, after all pieces that came before it and without telling `write` of an end; and what `write`
        itself, or its future, raised.
        """
        self._write = write
        if self._buffer or self._body_received:
            self._write_buffered()
        while self._pending_write is not None or not self._body_written:
            if self._error is not None and self._pending_write is None:
                raise self._error
            await self._new_waiter()

    def close(self) -> None:
        """Nobody wants the rest: if there is any, the connection to the upstream is closed at once. Idempotent."""
        source, self._source = self._source, None
        self._write = None
        if source is not None:
            source.abort()

    # For the source

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        if not self._head.done():
            self._head.set_result(None)

    def on_body(self, data: bytes, more: bool) -> None:
        """`data` may be empty when it only says that there is no more. The source is free after that."""
        write = self._write
        if write is not None and more and self._pending_write is None:  # the usual case of a stream, and all that it costs
            self._write_piece(write, data)
            return
        if data:
            self._buffer.append(data)
            self._buffered += len(data)
        if not more:
            self._body_received = True
            self._source = None
        if write is None:
            if self._buffered >= self._high_water:
                self._pause()
            self._wake()
        elif self._pending_write is None:
            self._write_buffered()

    def on_error(self, error: Exception) -> None:
        """The rest will not come."""
        self._source = None
        self._error = error
        if not self._head.done():
            self._head.set_exception(error)
        self._wake()

    # Inside

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
        if self._pending_write is None and (self._body_written or self._error is not None):
            self._wake()

    def _write_piece(self, write: PieceWriter, piece: bytes) -> None:
        try:
            busy = write(piece, not self._body_received)
        except Exception as error:
            self._fail(error)
            return
        if busy is not None:
            self._pending_write = busy
            self._pause()
            busy.add_done_callback(self._on_written)

    def _on_written(self, busy: asyncio.Future[None]) -> None:
        self._pending_write = None
        if busy.cancelled() or busy.exception() is not None:
            self._fail(asyncio.CancelledError() if busy.cancelled() else busy.exception())
        elif self._write is not None and (self._buffer or self._body_received > self._body_written):
            self._write_buffered()
        else:
            self._resume()
            self._wake()

    def _fail(self, error: BaseException | None) -> None:
        self.close()
        self._error = error
        self._wake()

    def _pause(self) -> None:
        if not self._paused and self._source is not None:
            self._paused = True
            self._source.pause()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._source is not None:
                self._source.resume()

    def _new_waiter(self) -> asyncio.Future[None]:
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
