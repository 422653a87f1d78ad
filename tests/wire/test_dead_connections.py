"""Kept connections that are dead when they are used again: which requests are sent again, how often, and over which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from raw_upstream import Peer, Script, answering, client, read_whole, run, upstream

from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ConnectError, Disconnected
from maitred.wire.origin import Origin
from maitred.wire.response import UpstreamResponse

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def get(c: UpstreamClient, origin: Origin) -> bytes:
    return await read_whole(await c.request(origin, "POST", "/", body=b"{}"))


async def read_after(asking: Awaitable[UpstreamResponse]) -> bytes:
    return await read_whole(await asking)


async def dies_when_used_again(peer: Peer) -> None:
    """Answer once, and reset the connection when the next request has come: the peer has forgotten it."""
    await peer.request()
    await peer.send(OK)
    await peer.request()
    peer.reset()


async def closes_when_used_again(peer: Peer) -> None:
    await peer.request()
    await peer.send(OK)
    await peer.request()


@pytest.mark.parametrize("dies", [dies_when_used_again, closes_when_used_again])
def test_a_dead_kept_connection_is_replaced_without_a_word(dies: Script) -> None:
    async def scenario() -> int:
        async with upstream(dies, answering(OK)) as up, client() as c:
            await get(c, up.origin)
            assert await get(c, up.origin) == b"ok"
            return up.accepted

    assert run(scenario()) == 2


def test_a_connection_that_was_reset_while_it_was_idle_is_replaced() -> None:
    """The reset has come, and the event loop has not seen it: the request fails as it is written."""

    async def scenario() -> int:
        peers: list[Peer] = []

        async def forgets(peer: Peer) -> None:
            peers.append(peer)
            await peer.request()
            await peer.send(OK)
            await peer.wait_until_closed()

        async with upstream(forgets, answering(OK)) as up, client() as c:
            await get(c, up.origin)
            peers[0].reset()
            assert await get(c, up.origin) == b"ok"
            return up.accepted

    assert run(scenario()) == 2


def test_a_connection_lost_after_a_while_of_work_was_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream has taken the request and died, perhaps of it: whether it gets it again is for the caller to judge."""
    monkeypatch.setattr("maitred.wire.connection.STALE_SECS", 0.01)

    async def scenario() -> int:
        async def works_and_dies(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.request()
            await asyncio.sleep(0.05)
            peer.reset()

        async with upstream(works_and_dies, answering(OK)) as up, client() as c:
            await get(c, up.origin)
            with pytest.raises(Disconnected) as raised:
                await get(c, up.origin)
            assert raised.value.was_sent
            return up.accepted

    assert run(scenario()) == 1


def test_an_upstream_that_dies_of_a_request_over_a_kept_connection_has_seen_it() -> None:
    async def scenario() -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(reader, writer)
            await peer.request()
            await peer.send(OK)
            await peer.request()
            server.close()
            peer.reset()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1])
        async with client() as c:
            await get(c, origin)
            with pytest.raises(ConnectError) as raised:
                await get(c, origin)
            assert raised.value.is_refusal
            assert raised.value.was_sent

    run(scenario())


def test_a_dead_connection_takes_those_with_it_that_were_idle_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that has brought a response since is kept."""
    monkeypatch.setattr("maitred.wire.connection.STALE_SECS", 10.0)

    async def scenario() -> None:
        dies = asyncio.Event()

        async def script(peer: Peer) -> None:
            while True:
                _, body = await peer.request()
                if body == b"poison" and not dies.is_set():
                    await dies.wait()
                    return peer.reset()
                await asyncio.sleep(0.005)
                await peer.send(OK)

        async with upstream(script) as up, client() as c:
            await asyncio.gather(*(get(c, up.origin) for _ in range(3)))
            dying = asyncio.create_task(read_after(c.request(up.origin, "POST", "/", body=b"poison")))
            await get(c, up.origin)
            dies.set()
            assert await dying == b"ok"
            assert (up.accepted, c.num_connections(up.origin)) == (4, 2)
            await asyncio.gather(*(get(c, up.origin) for _ in range(2)))
            assert up.accepted == 4

    run(scenario())


def test_a_dead_connection_is_not_replaced_by_one_that_may_be_as_dead() -> None:
    async def scenario() -> int:
        async with upstream(dies_when_used_again) as up, client() as c:
            await asyncio.gather(get(c, up.origin), get(c, up.origin))
            assert up.accepted == 2
            assert await get(c, up.origin) == b"ok"
            return up.accepted

    assert run(scenario()) == 3


def test_a_new_connection_that_is_closed_is_a_failure_at_once() -> None:
    async def scenario() -> int:
        async def rude(peer: Peer) -> None:
            await peer.request()

        async with upstream(rude) as up, client() as c:
            with pytest.raises(Disconnected):
                await get(c, up.origin)
            return up.accepted

    assert run(scenario()) == 1


def test_a_dead_connection_is_replaced_only_once() -> None:
    async def scenario() -> int:
        async def rude(peer: Peer) -> None:
            await peer.request()

        async with upstream(closes_when_used_again, rude, answering(OK)) as up, client() as c:
            await get(c, up.origin)
            with pytest.raises(Disconnected):
                await get(c, up.origin)
            return up.accepted

    assert run(scenario()) == 2


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_nothing_is_sent_again_once_an_answer_has_begun(begun: bytes) -> None:
    async def scenario() -> int:
        async def dies(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.request()
            await peer.send(begun)

        async with upstream(dies, answering(OK)) as up, client() as c:
            await get(c, up.origin)
            with pytest.raises(Disconnected):
                await get(c, up.origin)
            return up.accepted

    assert run(scenario()) == 1
