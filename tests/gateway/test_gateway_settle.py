"""The end of a gateway as balancers need it: unready first, the port open for a while, then what is in flight, then the cut."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from test_gateway_stream_errors import BEGINNINGS, PATHS, STREAM, told
from world import CHAT, MACHINE, STREAM_HEAD, Backend, BackendRequest, GatedAnswer, GatewayWorld, chunk, run

from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway, serve_gateway
from maitred.testing.world import VirtualLoop

HEALTH = ("/ready", "/readiness", "/health")


class Ending:
    """A gateway that serves until a signal, in virtual time."""

    def __init__(self, w: GatewayWorld, serving: asyncio.Task[None]) -> None:
        self.w, self.serving = w, serving

    def signal(self, number: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.send_signal(number)

    async def health(self) -> list[int]:
        return [(await self.w.request(path, method="GET"))[0] for path in HEALTH]

    async def accepts(self) -> bool:
        with contextlib.suppress(OSError):
            await self.w.connect()
            return True
        return False


@contextlib.asynccontextmanager
async def ending(backend: Backend, **config: Any) -> AsyncIterator[Ending]:
    await backend.start()
    gateway = Gateway(GatewayConfig(backends=(backend.url,), port=0, slots_per_backend=4, **config), machine=MACHINE.get())
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_gateway(gateway, gateway.open_ports(), ready.set_result))
    w = GatewayWorld(gateway, [await ready], (backend,))
    try:
        yield Ending(w, serving)
        await serving
    finally:
        w.close()
        await backend.stop()


@pytest.mark.parametrize("by", ["SIGTERM", "/admin/drain"])
def test_a_gateway_that_is_told_to_end_is_unready_and_accepts_for_settle_secs(by: str) -> None:
    async def scenario() -> None:
        async with ending(Backend()) as end:
            assert await end.health() == [200] * 3
            if by == "SIGTERM":
                end.signal(signal.SIGTERM)
            else:
                told = {"draining": True, "settle_secs": 10.0, "drain_secs": 30.0}
                for _ in range(2):  # Asking again changes nothing, unlike a further signal.
                    status, _, answer = await end.w.request("/admin/drain", b"")
                    assert (status, msgspec.json.decode(answer)) == (202, told)
            await asyncio.sleep(0.1)
            assert await end.health() == [503] * 3
            status, _, answer = await end.w.request("/health", method="GET")
            assert (status, msgspec.json.decode(answer)) == (503, {"status": "draining"})
            assert (await end.w.request("/liveness", method="GET"))[0] == 200
            await asyncio.sleep(9.0)
            assert (await end.w.request())[0] == 200
            await asyncio.sleep(1.0)
            assert not await end.accepts()

    run(scenario())


def test_sigint_closes_the_port_at_once_and_a_further_sigterm_ends_settling_alone() -> None:
    async def scenario(first: signal.Signals, *further: signal.Signals) -> None:
        gated = GatedAnswer()
        async with ending(Backend(gated)) as end:
            held = await end.w.start_request()
            await end.w.wait_until(lambda: end.w.backends[0].received)
            for number in (first, *further):
                end.signal(number)
                await asyncio.sleep(0.01)
            assert not await end.accepts()
            gated.open.set()  # What is in flight has its grace all the same.
            assert (await held.read_response())[0] == 200

    run(scenario(signal.SIGINT))
    run(scenario(signal.SIGTERM, signal.SIGTERM))
    run(scenario(signal.SIGTERM, signal.SIGINT))


@pytest.mark.parametrize("hurries", [False, True], ids=["grace over", "a further signal"])
@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_is_cut_at_the_end_is_told_so_in_the_words_of_its_api(path: str, hurries: bool) -> None:
    async def begin(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + b"".join(chunk(piece) for piece in BEGINNINGS[path]))
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with ending(Backend(begin)) as end:
            connection = await end.w.connect()
            await connection.send_request(path, STREAM)
            assert (await connection.read_head())[0] == 200
            got = b""
            while len(got) < sum(map(len, BEGINNINGS[path])):
                got += await connection.read_chunk()
            end.signal(signal.SIGTERM)
            await asyncio.sleep(5.0)  # It settles.
            if hurries:
                for _ in range(2):
                    end.signal(signal.SIGTERM)
                    await asyncio.sleep(0.01)
            assert "shutting down" in told(path, await connection.read_chunk())
            assert b"[DONE]" not in await connection.reader.read()  # the cut, or the end

    run(scenario())


def test_an_idle_connection_outlives_the_idle_timeout_of_a_balancer() -> None:
    async def scenario(lives: float, **config: Any) -> None:
        async with ending(Backend(), settle_secs=0, **config) as end:
            connection = await end.w.connect()
            await connection.send_request()
            assert (await connection.read_response())[0] == 200
            began = asyncio.get_running_loop().time()
            assert await connection.reader.read() == b""
            assert asyncio.get_running_loop().time() - began == pytest.approx(lives, abs=1.5)
            end.signal(signal.SIGTERM)

    run(scenario(20.0, keep_alive_secs=20.0))
    assert GatewayConfig(backends=("http://a:1",)).keep_alive_secs > 60


def test_what_names_no_backend_drains_nothing() -> None:
    async def scenario() -> None:
        async with ending(Backend()) as end:
            for body in ({}, {"backend": "http://x:1"}):
                assert (await end.w.request("/admin/drain", body))[0] in (400, 404)
            assert await end.health() == [200] * 3
            assert (await end.w.request(CHAT))[0] == 200
            end.signal(signal.SIGINT)

    run(scenario())
