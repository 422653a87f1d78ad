"""Which connection carries a request: kept ones, stale ones, and those that must not be used again."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from raw_upstream import Peer, answering, black_hole, client, read_whole, run, upstream

from maitred.wire.client import UpstreamClient
from maitred.wire.errors import (
    ConnectError,
    ConnectTimeout,
    Disconnected,
    LocalError,
    PoolTimeout,
    UpstreamError,
    connect_error,
)
from maitred.wire.origin import Origin

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def get(c: UpstreamClient, origin: Origin) -> bytes:
    return await read_whole(await c.request(origin, "POST", "/", body=b"{}"))


def connections_for_two(first: bytes) -> int:
    """Return how many connections two requests take if the first is answered with `first`."""

    async def scenario() -> int:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(first)
            await peer.request()
            await peer.send(OK)

        async with upstream(script, answering(OK)) as up, client() as c:
            assert await get(c, up.origin) == b"ok"
            await asyncio.sleep(0.01)
            assert await get(c, up.origin) == b"ok"
            return up.accepted

    return run(scenario())


def test_a_connection_is_used_again() -> None:
    assert connections_for_two(OK) == 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", id="asked to close"),
        pytest.param(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", id="old protocol"),
        pytest.param(OK + b"x", id="a byte after the end"),
        pytest.param(OK + b"HTTP/1.1 500 No\r\ncontent-length: 3\r\n\r\nbad", id="a second response without a request"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nokmore", id="more after asking to close"
        ),
    ],
)
def test_not_used_again(first: bytes) -> None:
    assert connections_for_two(first) == 2


def test_trailers_go_nowhere() -> None:
    async def scenario() -> list[tuple[bytes, bytes]]:
        trailers = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-secret: 1\r\n\r\n"
        async with upstream(answering(trailers, OK)) as up, client() as c:
            assert await get(c, up.origin) == b"ok"
            return (await c.request(up.origin, "POST", "/")).headers

    assert run(scenario()) == [(b"content-length", b"2")]


def test_a_second_response_does_not_change_the_first() -> None:
    async def scenario() -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        async with upstream(answering(OK + b"HTTP/1.1 500 No\r\nx: y\r\ncontent-length: 3\r\n\r\nbad")) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            return response.status, response.headers, await read_whole(response)

    assert run(scenario()) == (200, [(b"content-length", b"2")], b"ok")


def test_data_on_an_idle_connection_closes_it() -> None:
    async def scenario() -> int:
        async def chatty(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await asyncio.sleep(0.01)
            await peer.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            await peer.wait_until_closed()

        async with upstream(chatty, answering(OK)) as up, client() as c:
            await get(c, up.origin)
            await asyncio.sleep(0.03)
            assert await get(c, up.origin) == b"ok"
            return up.accepted

    assert run(scenario()) == 2


def test_idle_connections_are_closed_after_a_while() -> None:
    async def scenario() -> None:
        closed = asyncio.Event()

        async def watches(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.wait_until_closed()
            closed.set()

        async with upstream(watches) as up, client(keep_alive_secs=0.02) as c:
            await get(c, up.origin)
            assert c.pool(up.origin).num_open == 1
            await closed.wait()
            await asyncio.sleep(0.01)
            assert c.pool(up.origin).num_open == 0

    run(scenario())


def test_closing_the_client_closes_what_is_idle() -> None:
    async def scenario() -> None:
        closed = asyncio.Event()

        async def watches(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.wait_until_closed()
            closed.set()

        async with upstream(watches) as up:
            c = UpstreamClient()
            await get(c, up.origin)
            await c.close()
            await closed.wait()

    run(scenario())


def test_more_requests_than_connections_wait_in_turn() -> None:
    async def scenario() -> tuple[int, int]:
        at_once, most = 0, 0

        async def slow(peer: Peer) -> None:
            nonlocal at_once, most
            while True:
                await peer.request()
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0.002)
                at_once -= 1
                await peer.send(OK)

        async with upstream(slow) as up, client(max_connections=3) as c:
            answers = await asyncio.gather(*(get(c, up.origin) for _ in range(20)))
            assert answers == [b"ok"] * 20
            return up.accepted, most

    assert run(scenario()) == (3, 3)


def test_places_are_not_lost_to_failures_and_cancellations() -> None:
    async def scenario() -> None:
        async def mute(peer: Peer) -> None:
            await peer.wait_until_closed()

        async def rude(peer: Peer) -> None:
            await peer.request()

        async with upstream(mute, rude, answering(OK)) as up, client(max_connections=1) as c:
            held = asyncio.create_task(get(c, up.origin))
            waiting = [asyncio.create_task(get(c, up.origin)) for _ in range(3)]
            await asyncio.sleep(0.01)
            waiting[0].cancel()  # gave up in the queue
            held.cancel()  # its connection is closed; the next in turn makes one, which fails; the last one makes another
            results = await asyncio.gather(held, *waiting, return_exceptions=True)
            assert isinstance(results[2], Disconnected)
            assert results[3] == b"ok"

    run(scenario())


@pytest.mark.parametrize("given", ["a connection", "a place"])
def test_a_connection_given_to_a_request_that_left_in_the_same_instant_goes_to_the_next(given: str) -> None:
    async def scenario() -> bool:
        async with upstream(answering(OK, OK)) as up, client(max_connections=1) as c:
            pool = c.pool(up.origin)
            held = await pool.acquire()
            leaving, staying = (asyncio.create_task(pool.acquire()) for _ in range(2))
            await asyncio.sleep(0.005)
            if given == "a connection":
                pool._on_idle(held)
            else:
                pool._on_closed(held)
            leaving.cancel()
            took = await staying
            assert leaving.cancelled()
            held.close()
            took.close()
            return took is held

    assert run(scenario()) == (given == "a connection")


def test_waiting_for_a_connection_has_a_limit() -> None:
    async def scenario() -> None:
        async def mute(peer: Peer) -> None:
            await peer.wait_until_closed()

        async with upstream(mute) as up, client(max_connections=1, connect_secs=0.03) as c:
            held = asyncio.create_task(get(c, up.origin))
            await asyncio.sleep(0.01)
            with pytest.raises(PoolTimeout) as raised:
                await get(c, up.origin)
            assert not raised.value.was_sent
            held.cancel()

    run(scenario())


def test_a_host_that_does_not_answer_has_not_seen_the_request() -> None:
    async def scenario() -> None:
        with black_hole(("127.0.0.1", 0)) as address:
            async with client(connect_secs=0.05) as c:
                with pytest.raises(ConnectTimeout, match=r"no connection to 127\.0\.0\.1:\d+ within 0\.05 s") as raised:
                    await get(c, Origin(*address))
                assert (raised.value.was_sent, raised.value.is_refusal) == (False, False)

    run(scenario())


def test_no_server_listens() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with client() as c:
            await get(c, Origin("127.0.0.1", port))

    with pytest.raises(ConnectError, match="refused"):
        run(scenario())


def test_a_name_that_does_not_resolve() -> None:
    async def scenario() -> None:
        async with client() as c:
            await get(c, Origin("nowhere.invalid", 80))

    with pytest.raises(ConnectError, match=r"nowhere\.invalid:80"):
        run(scenario())


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_lack_of_descriptors_is_no_fault_of_the_upstream() -> None:
    async def scenario() -> bytes:
        async with upstream(answering(OK)) as up, client(max_connections=1) as c:
            with no_more_descriptors(), pytest.raises(LocalError, match="too many open files"):
                await get(c, up.origin)
            return await get(c, up.origin)

    assert run(scenario()) == b"ok"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, LocalError),
        (errno.ENFILE, LocalError),
        (errno.ENOBUFS, LocalError),
        (errno.EADDRNOTAVAIL, LocalError),
        (errno.ECONNREFUSED, ConnectError),
        (errno.EHOSTUNREACH, ConnectError),
        (None, ConnectError),
    ],
)
def test_whose_fault_it_is_that_there_is_no_connection(number: int | None, kind: type[UpstreamError]) -> None:
    error = connect_error(OSError(number, "words"), "no connection")
    assert type(error) is kind
    assert not issubclass(LocalError, ConnectError)


def test_a_failure_to_connect_keeps_nothing_alive() -> None:
    """Its traceback refers to the request with its body, so it must not refer to itself."""

    async def scenario() -> int:
        async with client() as c:
            gc.collect()
            gc.disable()
            try:
                with pytest.raises(ConnectError):
                    await c.request(Origin("127.0.0.1", 1), "POST", "/", body=b"a body")
                await asyncio.sleep(0)
                return sum(isinstance(thing, ConnectError) for thing in gc.get_objects())
            finally:
                gc.enable()

    assert run(scenario()) == 0


def test_a_name_that_cannot_be_one_is_a_failure_to_connect() -> None:
    async def scenario() -> None:
        async with client() as c:
            await get(c, Origin("a..b", 80))

    with pytest.raises(ConnectError, match=r"'a\.\.b' is no host name"):
        run(scenario())
