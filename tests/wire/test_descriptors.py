"""Idle connections of clients make room for others when descriptors are short: which ones, and what that is for."""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from test_certificate import make_certificate

from maitred.wire.certificate import ServerCertificate
from maitred.wire.descriptors import DescriptorRoom, choose_idlest
from maitred.wire.exchange import Exchange, send_bytes
from maitred.wire.server import App, running_server
from maitred.wire.server_context import ServerContext

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW_REQUEST = REQUEST.replace(b"GET /", b"GET /slow")


@pytest.mark.parametrize(("limit", "mark", "last"), [(64, 48, 56), (256, 224, 240), (1024, 896, 960), (65_536, 64_512, 65_024)])
def test_a_part_of_the_descriptors_is_in_reserve(limit: int, mark: int, last: int) -> None:
    room = DescriptorRoom(limit)
    assert (room.mark, room.last) == (mark, last)
    assert room.num_missing(mark - 1, 0) == 0


def test_what_is_missing_is_closed_and_a_batch_more() -> None:
    room = DescriptorRoom(256)  # 32 in reserve, 4 at once
    assert room.num_missing(224, 0) == 5
    assert room.num_missing(230, 0) == 11
    assert room.num_missing(224, 5) == 0  # as many are being closed
    assert room.num_missing(230, 5) == 6


def test_the_idlest_are_chosen() -> None:
    idle = [(3.0, "c"), (1.0, "a"), (2.0, "b"), (4.0, "d")]
    assert choose_idlest(idle, 2) == ["a", "b"]
    assert choose_idlest(idle, 9) == ["a", "b", "c", "d"]
    assert choose_idlest([], 1) == []


class Server(App):
    """Answers `/` at once, and all else when `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def start(self, server: ServerContext) -> None:
        self.context = server

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path != "/":
            await self.go_on.wait()
        send_bytes(exchange, 200, b"hello", b"text/plain")


@contextmanager
def limited(free: int) -> Iterator[None]:
    """Leave `free` descriptors to this process."""
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    limit = [number for number in range(len(used) + free) if number not in used][free - 1] + 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Client:
    """A raw connection. Its socket is made before descriptors are limited, since it is of this process as well."""

    def __init__(self, made: socket.socket, address: tuple[str, int]) -> None:
        self._socket, self._address = made, address
        made.setblocking(False)

    async def connect(self) -> None:
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Return the next piece; b"" if the server has closed the connection."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, 65_536)
        except ConnectionResetError:
            return b""

    async def ask(self) -> bytes:
        await self.send(REQUEST)
        return await self.receive()

    async def ask_over_tls(self, trusted: ssl.SSLContext, request: bytes = REQUEST) -> bytes:
        """Connect, with a handshake, and return the answer to a request."""
        await self.connect()
        reader, writer = await asyncio.open_connection(sock=self._socket, ssl=trusted, server_hostname="localhost")
        writer.write(request)
        answer = await reader.readuntil(b"hello")
        writer.close()
        return answer

    async def is_closed(self, secs: float = 30.0) -> bool:
        """Return whether the server closes the connection within `secs`."""
        try:
            async with asyncio.timeout(secs):
                return await self.receive() == b""
        except TimeoutError:
            return False


@asynccontextmanager
async def short_of_descriptors(
    free: int, num_clients: int, certificate: ServerCertificate | None = None
) -> AsyncIterator[tuple[Server, list[Client]]]:
    """Run a server to which `free` descriptors are left, and make clients that are not connected."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_clients)]
        stack.enter_context(limited(free))
        server = Server()
        async with running_server(server, certificate=certificate) as url:
            where = urlsplit(url)
            assert where.hostname is not None
            assert where.port is not None
            yield server, [Client(each, (where.hostname, where.port)) for each in sockets]


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario, 60))


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the open descriptors are counted in /proc")


@needs_proc
def test_a_client_with_idle_connections_shuts_out_nobody() -> None:
    """200 connections that send nothing; then another client is served, and the oldest of the others have been closed."""

    async def scenario() -> None:
        async with short_of_descriptors(120, 201) as (server, (*idle, other)):
            for client in idle:
                await client.connect()
            await other.connect()
            assert (await other.ask()).endswith(b"hello")
            assert (await other.ask()).endswith(b"hello")
            assert server.context.num_evicted > 80
            assert await idle[0].is_closed()
            assert not await idle[-1].is_closed(0.3)

    run(scenario())


@needs_proc
@needs_openssl
def test_a_client_that_begins_no_handshakes_shuts_out_nobody(tmp_path: Path) -> None:
    files = make_certificate(tmp_path, "localhost")
    certificate, trusted = ServerCertificate(*files, where="gateway"), ssl.create_default_context(cafile=files[0])

    async def scenario() -> None:
        async with short_of_descriptors(120, 203, certificate) as (server, (*silent, one, other)):
            for client in silent:
                await client.connect()
            assert (await one.ask_over_tls(trusted)).endswith(b"hello")
            assert (await other.ask_over_tls(trusted)).endswith(b"hello")
            assert server.context.num_evicted > 80
            assert await silent[0].is_closed()
            assert not await silent[-1].is_closed(0.3)
            assert len(server.context.handshakes) < 120

    run(scenario())


@needs_proc
@needs_openssl
def test_a_client_is_let_in_over_tls_while_all_others_have_a_request(tmp_path: Path) -> None:
    """From `mark` to `last` nobody is turned away, though nothing can be closed: not the connection that has just been made."""
    files = make_certificate(tmp_path, "localhost")
    certificate, trusted = ServerCertificate(*files, where="gateway"), ssl.create_default_context(cafile=files[0])

    async def scenario() -> None:
        async with short_of_descriptors(60, 60, certificate) as (server, clients):
            room = server.context.descriptors
            busy = []
            while sum(1 for _ in Path("/proc/self/fd").iterdir()) < room.mark + 3:
                busy.append(asyncio.create_task(clients[len(busy)].ask_over_tls(trusted, SLOW_REQUEST)))
                await until(lambda: len(server.context.tasks) == len(busy))
            assert (await clients[len(busy)].ask_over_tls(trusted)).endswith(b"hello")
            assert server.context.num_evicted == 0
            server.go_on.set()
            assert all(answer.endswith(b"hello") for answer in await asyncio.gather(*busy))

    run(scenario())


@needs_proc
def test_a_connection_with_a_request_is_not_closed_for_another() -> None:
    async def scenario() -> None:
        async with short_of_descriptors(120, 201) as (server, (busy, *idle)):
            await busy.connect()
            await busy.send(SLOW_REQUEST)
            await until(lambda: server.context.tasks)
            for client in idle:
                await client.connect()
            await until(lambda: server.context.num_evicted > 80)
            server.go_on.set()
            assert (await busy.receive()).endswith(b"hello")

    run(scenario())


@needs_proc
def test_a_connection_with_half_a_head_is_idle() -> None:
    async def scenario() -> None:
        async with short_of_descriptors(120, 201) as (_, (*slow, other)):
            for client in slow:
                await client.connect()
                await client.send(b"GET / HTTP/1.1\r\n")
            await other.connect()
            assert (await other.ask()).endswith(b"hello")
            assert await slow[0].is_closed()

    run(scenario())


@needs_proc
def test_what_is_left_stays_in_reserve_while_nothing_can_be_closed() -> None:
    """All connections have a request. Others are turned away before the last descriptors are taken."""

    async def scenario() -> None:
        async with short_of_descriptors(120, 160) as (server, clients):
            for client in clients:
                await client.connect()
                with suppress(ConnectionResetError, BrokenPipeError):
                    await client.send(SLOW_REQUEST)
            await until(lambda: len(server.context.tasks) > 60)
            await asyncio.sleep(0)
            room = server.context.descriptors
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            free = limit - len(list(Path("/proc/self/fd").iterdir()))
            assert free >= (limit - room.last) - 2
            assert await clients[-1].is_closed()
            server.go_on.set()
            assert (await clients[0].receive()).endswith(b"hello")

    run(scenario())
