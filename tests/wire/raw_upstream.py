"""An upstream that sends exactly the bytes a test gives it, without an HTTP library."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from maitred.wire.client import UpstreamClient
from maitred.wire.errors import UpstreamLimits
from maitred.wire.origin import Origin
from maitred.wire.response import UpstreamResponse

T = TypeVar("T")


class Peer:
    """The upstream's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> tuple[bytes, bytes]:
        """Return head and body of the next request. Raises IncompleteReadError if the connection is closed instead."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        return head, await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def wait_until_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    def reset(self) -> None:
        """Close the connection; the next thing that the client gets is a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[object]]


class Upstream:
    def __init__(self) -> None:
        self.origin = Origin("127.0.0.1", 0)
        self.accepted = 0


@contextlib.asynccontextmanager
async def upstream(*scripts: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """Run an upstream whose n-th connection runs the n-th script, later ones the last.

    A connection is closed when its script returns. With `tls`, a context of a server, it speaks TLS.
    """
    self = Upstream()
    running: set[asyncio.Task[Any]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = scripts[min(self.accepted, len(scripts) - 1)]
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    self.origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1], tls=tls is not None)
    try:
        yield self
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@contextlib.contextmanager
def black_hole(address: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Listen at `address`, and answer no attempt to connect: the backlog is full. Yields the address with its port."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


def answering(*answers: bytes) -> Script:
    """Return a script that answers one request after the other on the same connection, then closes it."""

    async def script(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            await peer.send(answer)

    return script


@contextlib.asynccontextmanager
async def client(**limits: Any) -> AsyncIterator[UpstreamClient]:
    made = UpstreamClient(UpstreamLimits(**limits))
    try:
        yield made
    finally:
        await made.close()


async def read_into(pieces: list[bytes], response: UpstreamResponse) -> None:
    """Read `response` to its end, and keep in `pieces` what arrived even if it breaks off."""
    async for piece in response:
        pieces.append(piece)


async def read_whole(response: UpstreamResponse) -> bytes:
    return b"".join([piece async for piece in response])


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run `scenario` on uvloop, as in production, for 15 s at most."""

    async def bounded() -> T:
        async with asyncio.timeout(15):
            return await scenario

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())
