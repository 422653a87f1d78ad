"""The upstream client in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from maitred.testing.world import Network, VirtualLoop
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import UpstreamLimits
from maitred.wire.origin import Origin


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("seed", range(40))
def test_an_idle_connection_is_closed_at_its_time_whatever_its_time_rounds_to(seed: int) -> None:
    loop = VirtualLoop(seed)
    network = Network(loop)

    async def main() -> None:
        await asyncio.start_server(answer, "10.0.0.2", 80)
        client = UpstreamClient(UpstreamLimits(keep_alive_secs=4.0))
        await asyncio.sleep(1020.5 - loop.time())  # From 1,024 on, the times of the loop have a bit less behind the point.
        await client.request(Origin.parse("http://10.0.0.2"), "GET", "/")
        (connection,) = network.connections.values()
        idle_since = loop.time()
        while connection.is_open:
            await asyncio.sleep(0.01)
        assert 4.0 <= loop.time() - idle_since < 4.1
        await client.close()

    loop.run_until_complete(main())
