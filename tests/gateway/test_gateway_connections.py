"""Connections to backends: kept ones that died meanwhile, and those that cannot be made in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from world import ANSWER, Backend, BackendRequest, answer, run, world

from maitred.testing.world import Network, VirtualLoop
from maitred.testing.world.network import here
from maitred.wire.errors import UpstreamLimits


class ForgetfulBackend(Backend):
    """A backend behind a load balancer that has lost its table: what comes over an earlier connection is reset."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.connections: set[asyncio.StreamWriter] = set()
        self.forgotten: set[asyncio.StreamWriter] = set()

    def forget(self) -> None:
        self.forgotten |= self.connections

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        await super()._accepted(reader, writer)

    async def _respond(self, received: BackendRequest) -> None:
        if received.writer in self.forgotten:
            received.writer.transport.abort()
            raise ConnectionError
        await asyncio.sleep(0.005)  # so that others come meanwhile, and each needs a connection of its own
        await answer(received)


@pytest.mark.parametrize("programs", [None, {}])
@pytest.mark.parametrize("num_backends", [1, 2, 3])
def test_kept_connections_that_died_cost_no_attempt(num_backends: int, programs: dict[str, Any] | None) -> None:
    async def scenario() -> None:
        backends = [ForgetfulBackend() for _ in range(num_backends)]
        options: dict[str, Any] = {"programs": programs, "max_attempts": 1, "health_interval_secs": 30.0}
        async with world(*backends, **options) as w:
            for expected in (0, 1):
                asked = (w.request(body={"model": "m", "program_id": str(n)}) for n in range(8))
                assert [(status, body) for status, _, body in await asyncio.gather(*asked)] == [(200, ANSWER)] * 8
                assert any(b.forgotten for b in backends) == bool(expected)
                for backend in backends:
                    backend.forget()
            assert w.gateway.counters.retries == 0
            assert len(w.gateway.counters.upstream_failures) == 0

    run(scenario())


@contextlib.contextmanager
def vanished(port: int) -> Iterator[None]:
    """Let nobody answer at `port`: its backlog is full, so that attempts to connect are dropped."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    assert isinstance(loop.network, Network)
    listener = loop.network.listen("127.0.0.1", port, here(), backlog=0)
    yield
    listener.close()


@pytest.mark.parametrize("programs", [None, {}])
def test_a_request_to_a_host_that_has_vanished_is_sent_elsewhere(programs: dict[str, Any] | None) -> None:
    async def scenario() -> None:
        gone = [Backend(), Backend()]
        options = {"programs": programs, "max_attempts": 1, "health_interval_secs": 30.0}
        async with world(*gone, Backend(), upstream=UpstreamLimits(connect_secs=0.1), **options) as w:
            for backend in gone:
                await backend.stop()
            with vanished(gone[0].port), vanished(gone[1].port):
                asked = [w.request(body={"model": "m", "program_id": str(n)}) for n in range(9)]
                assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 9
            assert [backend.healthy for backend in w.state.backends] == [False, False, True]
            assert set(w.gateway.counters.upstream_failures) == {"connect_timeout"}

    run(scenario())


def test_a_single_backend_that_has_vanished_has_not_seen_the_request() -> None:
    async def scenario() -> None:
        backend = Backend()
        async with world(backend, upstream=UpstreamLimits(connect_secs=0.1), health_interval_secs=30.0) as w:
            await backend.stop()
            with vanished(backend.port):
                status, headers, _ = await w.request()
            assert (status, headers["x-smg-error-code"], headers["retry-after"]) == (503, "no_healthy_backend", "2")
            assert "within 0.1 s" in w.state.backends[0].problem

    run(scenario())
