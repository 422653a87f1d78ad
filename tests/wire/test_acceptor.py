"""Clients that come together are accepted together, and a server without descriptors left goes on."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop

from maitred.wire import acceptor
from maitred.wire.exchange import Exchange, send_bytes
from maitred.wire.server import App, running_server
from maitred.wire.server_context import ServerContext

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Hello(App):
    """Answers every request, and shows how many connections are open."""

    async def start(self, server: ServerContext) -> None:
        self.server = server

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        return self._answer(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        send_bytes(exchange, 200, b"hello", b"text/plain")

    @property
    def num_connections(self) -> int:
        return len(self.server.connections)


@contextmanager
def clients(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Connect `count` clients, which wait in the queue of the listening socket until the loop turns."""
    address = urlsplit(url).hostname, urlsplit(url).port
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


async def connections_by_turn(app: Hello, count: int) -> list[int]:
    """Return how many connections are open after each turn of the loop, until there are `count`."""
    open_after: list[int] = []
    while app.num_connections < count and len(open_after) < 10 * count:
        await asyncio.sleep(0)
        open_after.append(app.num_connections)
    return open_after


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(asyncio.wait_for(scenario(), 60))


def test_clients_that_come_together_are_accepted_in_one_turn() -> None:
    async def scenario() -> None:
        app = Hello()
        async with running_server(app) as url:
            with clients(url, 60):
                assert len(await connections_by_turn(app, 60)) <= 5

    run(scenario)


def test_one_turn_accepts_so_many_that_streams_are_served_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "MAX_PER_TURN", 10)

    async def scenario() -> None:
        app = Hello()
        async with running_server(app) as url:
            with clients(url, 60):
                steps = await connections_by_turn(app, 60)
                assert max(after - before for before, after in zip([0, *steps], steps, strict=False)) == 10

    run(scenario)


def test_all_of_them_are_served() -> None:
    async def scenario() -> None:
        async with running_server(Hello()) as url:
            with clients(url, 20) as connected:
                streams = [await asyncio.open_connection(sock=client) for client in connected]
                for _, writer in streams:
                    writer.write(REQUEST)
                for reader, writer in streams:
                    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
                    writer.close()

    run(scenario)


def limit_with_free_descriptors(count: int) -> int:
    """Return the limit of descriptors below which `count` numbers are free."""
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    return [number for number in range(len(used) + count) if number not in used][count - 1] + 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the open descriptors are counted in /proc")
def test_without_descriptors_clients_are_dropped_and_the_next_one_is_served() -> None:
    async def scenario() -> None:
        app = Hello()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with running_server(app) as url:
            with clients(url, 30) as connected:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit_with_free_descriptors(10), hard))
                try:
                    await connections_by_turn(app, 30)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert app.num_connections < 30
                assert connected[-1].recv(1) == b""
            with clients(url, 1) as (client,):
                reader, writer = await asyncio.open_connection(sock=client)
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
                writer.close()

    run(scenario)
