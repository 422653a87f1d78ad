"""A large body goes out in slices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raw_upstream import Peer, answering, client, read_whole, run, upstream

from maitred.wire.connection import UpstreamConnection
from maitred.wire.errors import Disconnected

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BODY = bytes(range(256)) * 12_345  # 3 MB, and no whole number of slices


class Written:
    """A transport that notes what is written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.sizes: list[int] = []

    def write(self, data: Any) -> None:
        self.sizes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    made, noted = UpstreamConnection.connection_made, []

    def connection_made(self: UpstreamConnection, transport: Any) -> None:
        noted.append(Written(transport))
        made(self, noted[-1])  # type: ignore[arg-type]

    monkeypatch.setattr(UpstreamConnection, "connection_made", connection_made)
    return noted


def test_no_slice_is_large_and_all_of_it_comes_in_order(written: list[Written]) -> None:
    async def scenario() -> list[bytes]:
        bodies = []

        async def take(peer: Peer) -> None:
            for _ in range(2):
                bodies.append((await peer.request())[1])
                await peer.send(OK)

        async with upstream(take) as up, client() as c:
            for body in (BODY, b"small"):  # over the same connection
                assert await read_whole(await c.request(up.origin, "POST", "/", body=body)) == b"ok"
            assert up.accepted == 1
        return bodies

    assert run(scenario()) == [BODY, b"small"]
    assert len(written) == 1
    assert max(written[0].sizes) <= 256 * 1024


def test_an_upstream_that_leaves_within_a_body_ends_the_request() -> None:
    async def scenario() -> None:
        async def leaves(peer: Peer) -> None:
            await peer.reader.readexactly(500_000)
            peer.reset()

        async with upstream(leaves, answering(OK)) as up, client() as c:
            with pytest.raises(Disconnected):
                await c.request(up.origin, "POST", "/", body=BODY * 5)
            assert await read_whole(await c.request(up.origin, "POST", "/", body=BODY)) == b"ok"

    run(scenario())
