"""Backends that are down, break off, send garbage or fall silent; and a gateway that shuts down."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from world import ANSWER, MACHINE, STREAM_HEAD, Backend, BackendRequest, GatewayWorld, apart, chunk, run, whole, world


async def refusal(w: GatewayWorld, body: object = None) -> tuple[int, str]:
    status, headers, answered = await w.request(body=body)
    assert msgspec.json.decode(answered)["error"]["message"]
    assert (headers.get("retry-after") == "2") == (status in (502, 503))  # another attempt may well succeed
    return status, headers["x-smg-error-code"]


async def dies(received: BackendRequest) -> None:
    raise ConnectionError


async def dies_after_its_head(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD)
    await apart()
    raise ConnectionError


async def dies_after_a_comment(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD + chunk(b": still working\n\n"))
    await apart()
    raise ConnectionError


def test_it_starts_with_backends_down_and_recovers_when_they_come() -> None:
    async def scenario() -> None:
        backend = Backend()
        async with world(backend) as w:
            await backend.stop()
            await w.wait_until(lambda: not w.state.ready)
            status, _, body = await w.request("/ready", method="GET")
            state = msgspec.json.decode(body)
            assert (status, state["ready"], state["backends"][0]["healthy"]) == (503, False, False)
            assert "refused" in state["backends"][0]["problem"]
            assert (await w.request("/health", method="GET"))[0] == 200
            assert await refusal(w) == (503, "no_healthy_backend")
            assert (await w.request("/v1/models", method="GET"))[0] == 503
            assert w.state.capacity == 0
            await backend.start()
            await w.wait_until(lambda: w.state.ready)
            assert (await w.request("/ready", method="GET"))[0] == 200
            assert (await w.request())[0] == 200

    run(scenario())


def test_before_any_backend_was_seen_every_model_may_still_come() -> None:
    async def scenario() -> tuple[int, str]:
        backend = Backend()
        backend.status = b"503 Service Unavailable"
        async with world(backend, ready=False) as w:
            await w.wait_until(lambda: "503" in w.state.backends[0].problem)
            return await refusal(w)

    assert run(scenario()) == (503, "no_healthy_backend")


def test_a_model_is_unknown_only_when_every_backend_has_been_heard() -> None:
    async def scenario() -> None:
        first, second = Backend(models=("a",)), Backend(models=("b",))
        second.status = b"503 Service Unavailable"
        async with world(first, second, ready=False) as w:
            await w.wait_until(lambda: w.state.backends[0].healthy and "503" in w.state.backends[1].problem)
            assert await refusal(w, {"model": "b"}) == (503, "no_healthy_backend")
            assert (await w.request(body={"model": "b"}))[1]["retry-after"] == "2"
            assert (await w.request("/v1/models/b", method="GET"))[0] == 503
            second.status = b"200 OK"
            await w.wait_until(lambda: w.state.backends[1].healthy)
            assert (await w.request(body={"model": "b"}))[0] == 200
            assert await refusal(w, {"model": "c"}) == (404, "model_not_found")

    run(scenario())


def test_one_failed_poll_is_no_reason_to_panic() -> None:
    async def scenario() -> None:
        backend = Backend()
        async with world(backend, health_failures=3) as w:
            state = w.gateway.scheduler.fleet.backends[0]
            backend.status = b"500 Internal Server Error"
            await w.wait_until(lambda: state.failures_in_a_row == 2)
            assert state.healthy
            await w.wait_until(lambda: not state.healthy)
            assert state.failures_in_a_row == 3

    run(scenario())


def test_models_that_come_and_go() -> None:
    async def scenario() -> None:
        backend = Backend(models=("a",))
        async with world(backend, slots=4) as w:
            backend.models = ("b",)
            await w.wait_until(lambda: w.state.pools.get("b"))
            assert {name: pool.capacity for name, pool in w.state.pools.items()} == {"b": 4}
            assert await refusal(w, {"model": "a"}) == (503, "no_healthy_backend")
            assert (await w.request(body={"model": "b"}))[0] == 200

    run(scenario())


def test_an_error_repeats_the_beginning_of_what_a_client_has_sent() -> None:
    async def scenario() -> None:
        async with world() as w:
            bodies = [
                (await w.request(body={"model": "x" * 300_000}))[2],
                (await w.request(f"/v1/models/{'x' * 30_000}", b"", "GET"))[2],
                (await w.request(f"/{'x' * 30_000}", b"", "OPTIONS"))[2],
                (await w.request("/admin/drain", {"backend": "x" * 60_000}))[2],
            ]
            assert all(b"x" * 190 in body and b"..." in body and len(body) < 500 for body in bodies)

    run(scenario())


@pytest.mark.parametrize("respond", [dies, dies_after_its_head, dies_after_a_comment])
def test_another_backend_takes_over_before_the_first_data(respond) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> None:
        async with world(Backend(respond), Backend()) as w:
            for _ in range(3):
                status, _, body = await w.request(body={"model": "m", "stream": True})
                assert (status, body) == (200, ANSWER)
            assert w.gateway.counters.retries > 0
            # A request on a kept connection is first sent again to the same backend.
            assert len(w.backends[0].received) >= w.gateway.counters.retries
            assert w.state.classes["default"].completed == 3

    run(scenario())


def test_a_refused_connection_is_tried_elsewhere_and_marks_the_backend_down() -> None:
    async def scenario() -> None:
        first, second = Backend(), Backend()
        async with world(first, second, health_interval_secs=30.0, slots=5) as w:
            await first.stop()
            for _ in range(3):
                assert (await w.request())[0] == 200
            assert [backend.healthy for backend in w.state.backends] == [False, True]
            assert w.state.capacity == 5
            assert w.gateway.counters.retries == 1

    run(scenario())


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (dies, (502, "upstream_disconnected")),
        (dies_after_its_head, (502, "upstream_truncated")),
    ],
)
def test_no_backend_left(respond, expected) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> tuple[int, str]:
        async with world(Backend(respond), Backend(respond)) as w:
            refused = await refusal(w, {"model": "m", "stream": True})
            assert all(backend.received for backend in w.backends)
            assert w.gateway.counters.retries == 1
            assert w.state.classes["default"].failed == 1
            return refused

    assert run(scenario()) == expected


def test_all_connections_refused() -> None:
    async def scenario() -> tuple[int, str]:
        backends = Backend(), Backend()
        async with world(*backends, health_interval_secs=30.0) as w:
            for backend in backends:
                await backend.stop()
            return await refusal(w)

    assert run(scenario()) == (503, "no_healthy_backend")


def test_garbage_is_not_asked_for_twice() -> None:
    async def scenario() -> tuple[int, str]:
        async def garbage(received: BackendRequest) -> None:
            await received.send(b"?!\r\n\r\n")

        async with world(Backend(garbage), Backend(garbage)) as w:
            refused = await refusal(w)
            assert sum(len(backend.received) for backend in w.backends) == 1
            return refused

    assert run(scenario()) == (502, "upstream_protocol_error")


def test_silence() -> None:
    async def scenario() -> tuple[int, str]:
        from maitred.wire.errors import UpstreamLimits

        async def mute(received: BackendRequest) -> None:
            await received.wait_until_disconnected()

        async with world(Backend(mute), Backend(mute), upstream=UpstreamLimits(head_secs=0.05)) as w:
            refused = await refusal(w)
            assert sum(len(backend.received) for backend in w.backends) == 1
            return refused

    assert run(scenario()) == (504, "upstream_timeout")


@pytest.mark.parametrize("framing", ["chunks", "a length", "the end of the connection, by a reset"])
def test_an_answer_that_breaks_off_ends_visibly_cut(framing: str) -> None:
    """However the body of the backend should have ended, the client must see that it did not."""

    async def scenario() -> None:
        async def breaks_off(received: BackendRequest) -> None:
            if framing == "chunks":
                await received.send(STREAM_HEAD + chunk(b"data: 1\n"))  # the beginning of an event
            elif framing == "a length":
                await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndata: 1\n\n")
            else:
                await received.send(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")
            await apart()
            if framing.startswith("the end"):
                received.writer.transport.abort()
            raise ConnectionError

        async with world(Backend(breaks_off), Backend(breaks_off)) as w:
            connection = await w.start_request({"model": "m", "stream": True})
            status, headers = await connection.read_head()
            rest = await connection.reader.read()  # to the end of the connection
            assert status == 200
            if framing == "a length":
                assert (headers["content-length"], rest) == ("100", b"data: 1\n\n")
            else:
                sent = b"8\r\ndata: 1\n\r\n" if framing == "chunks" else b"9\r\ndata: 1\n\n\r\n"
                assert (headers["transfer-encoding"], rest) == ("chunked", sent)
            await w.wait_until_idle()
            assert w.state.classes["default"].failed == 1
            assert w.gateway.counters.upstream_failures == {"truncated": 1}

    run(scenario())


def test_comments_are_shown_with_the_first_data() -> None:
    async def scenario() -> bytes:
        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD + chunk(b": ping\n\n"))
            await apart()
            await received.send(chunk(b": pong\n\n"))
            await apart()
            await received.send(chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        async with world(Backend(respond)) as w:
            return (await w.request(body={"model": "m", "stream": True}))[2]

    assert run(scenario()) == b": ping\n\n: pong\n\ndata: 1\n\n"


def test_what_is_in_flight_when_told_to_stop_is_finished() -> None:
    async def scenario() -> tuple[int, bytes]:
        gate = asyncio.Event()

        async def slow(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        from world import ClientConnection

        from maitred.gateway import GatewayConfig
        from maitred.gateway.app import Gateway
        from maitred.wire.server import running_server

        backend = Backend(slow)
        await backend.start()
        gateway = Gateway(GatewayConfig(backends=(backend.url,), health_interval_secs=0.01), machine=MACHINE.get())
        async with running_server(gateway, drain_secs=5.0, machine=gateway.machine) as url:
            while not gateway.state().ready:
                await asyncio.sleep(0.001)
            connection = ClientConnection(*await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1])))
            await connection.send_request()
            while not backend.received:
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.2, gate.set)
        status, _, body = await connection.read_response()
        connection.disconnect()
        await backend.stop()
        return status, body

    assert run(scenario()) == (200, ANSWER)
