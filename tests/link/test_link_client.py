"""A gateway's end of the link with its socket: what is written when."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from link_pair import DRAINED, SECRET, Pair, nonce

from maitred.core.request import Request
from maitred.scheduler.interface import Dialer, KnownAddresses, LinkAddress
from maitred.scheduler.sharing.link_client import LinkClient
from maitred.wire.clock import Clock


class Socket:
    """Takes everything at once, and keeps it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.frames.append(data)

    def get_write_buffer_size(self) -> int:
        return 0


def submit(client: LinkClient, number: int) -> None:
    request = Request(id=number, arrival=0, prompt_tokens=1, model="m")
    client.submit(number, request, 1, 0, 0)


def test_a_request_alone_is_told_at_once_and_several_of_a_turn_share_a_frame() -> None:
    async def scenario() -> None:
        pair = Pair(8, gateways=())
        dialer = Dialer(KnownAddresses(LinkAddress("/nowhere", None)))
        client = LinkClient(dialer, "a", SECRET, Clock(lambda: 0), Random(1), lambda event: None)
        socket: Any = Socket()
        client.connected(socket)
        pair.end.accept(1, nonce(1), 0)
        for _ in range(3):
            await asyncio.sleep(0)
            while socket.frames:
                pair.end.feed(1, socket.frames.pop(0), 0)
            client.feed(socket, pair.end.take_bytes(1, 0))
        assert client.problem is None
        assert client.end.is_linked

        submit(client, 1)
        assert len(socket.frames) == 1
        client.release(1, DRAINED, None)
        assert len(socket.frames) == 2

        for number in (2, 3, 4):
            submit(client, number)
        assert len(socket.frames) == 3  # The first of them could not know that others come.
        await asyncio.sleep(0)
        assert len(socket.frames) == 4
        for frame in socket.frames:
            pair.end.feed(1, frame, 0)
        assert len(pair.end.books.by_ticket) == 3

    asyncio.run(scenario())


def test_a_connection_that_ends_before_it_has_shown_who_it_is_is_told_when_the_next_one_does_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The system takes connections for a scheduler that was killed just now, and resets them."""

    async def scenario() -> list[str | None]:
        dialer = Dialer(KnownAddresses(LinkAddress("/nowhere", None)))
        client = LinkClient(dialer, "a", SECRET, Clock(lambda: 0), Random(1), lambda event: None)
        problems = []
        for _ in range(2):
            socket: Any = Socket()
            client.connected(socket)
            client.lost(socket)
            problems.append(client.problem)
        return problems

    first, second = asyncio.run(scenario())
    assert first is None
    assert "do both ends speak TLS, or neither?" in str(second)
    assert caplog.messages == [second]
