"""What is left of a request when it has ended: nothing, without any help of the garbage collector.

Python frees what nothing refers to at once, and what refers to itself in a circle only when the collector comes, which with few
allocations may be after a thousand requests of megabytes. The usual circle is an exception that is kept: it refers to its
traceback, that to the frames, and those to whatever keeps the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from test_gateway_programs import driver
from world import (
    STREAM_HEAD,
    Backend,
    BackendRequest,
    ClientConnection,
    GatedAnswer,
    GatewayWorld,
    chunk,
    run_on_sockets,
    whole,
    world,
)

from maitred.gateway.config import RetryConfig
from maitred.routing import RoutingConfig
from maitred.scheduler.ejection import EjectionConfig
from maitred.wire.errors import UpstreamLimits

SIZE = 400_000
REQUESTS = 6
PAD = "x" * SIZE
_OF_A_PROGRAM = {"IdleContext", "IdleContexts", "IndexedHeap", "Program", "ProgramKey", "TenantPrograms", "ToolTimes"}
SWEPT_LATER = {*_OF_A_PROGRAM, "InFlightOrder", "Ticket", "_TenantQueue"}
"""What a heap or a cache drops when it has many of them; none of it refers to a body."""
LARGE = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"pad":"' + b"x" * 1_200_000 + b'"}'
QUEUE = {"classes": {"default": {"queue_size": 0}, "bulk": {"queue_size": 100, "queue_timeout_secs": 0.01}}}
PREEMPTING = {"classes": {"interactive": {"can_preempt": True}}}


def body(model: str = "m", **fields: object) -> dict[str, object]:
    return {"model": model, "pad": PAD, **fields}


def count_alive() -> Counter[str]:
    """Return how many objects of the gateway, and of what an exception holds, are alive, by type."""
    alive: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if str(kind.__module__).startswith("maitred.") or isinstance(thing, asyncio.Task):
            alive[kind.__qualname__] += 1
        elif isinstance(thing, FrameType) and "/src/maitred/" in thing.f_code.co_filename:
            alive[f"frame of {thing.f_code.co_qualname}"] += 1
    return alive


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # What earlier tests have left, gigabytes perhaps, is not looked at each time.
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


Once = Callable[[GatewayWorld], Awaitable[object]]


async def measure(w: GatewayWorld, once: Once, kept: int = 0) -> None:
    """Let `once` happen a few times, and then as often again: the second time must leave nothing. `kept` connections stay."""
    await repeat(w, once, kept)
    before, before_bytes = count_alive(), tracemalloc.get_traced_memory()[0]
    await repeat(w, once, kept)
    # The sockets of the test may still have some of them, which they give back.
    await w.wait_until(lambda: tracemalloc.get_traced_memory()[0] - before_bytes < 2 * SIZE)
    more = count_alive() - before
    assert {kind: n for kind, n in more.items() if n >= REQUESTS - 1 and kind not in SWEPT_LATER} == {}


async def repeat(w: GatewayWorld, once: Once, kept: int) -> None:
    for _ in range(REQUESTS):
        await once(w)
    w.close()
    w._connections.clear()
    await w.wait_until(lambda: w.state.num_connections == kept)
    for backend in w.backends:
        backend.received.clear()


def leaves_nothing(once: Once, *backends: Backend, **config: Any) -> None:
    async def scenario() -> None:
        async with world(*backends, **{"health_interval_secs": 30, **config}) as w:  # A poll leaves things of its own.
            await measure(w, once)

    run_on_sockets(scenario())


def expect(status: int, payload: object = None, **headers: str) -> Once:
    async def once(w: GatewayWorld) -> None:
        answered, _, _ = await w.request(body=body() if payload is None else payload, **headers)
        assert answered == status

    return once


@pytest.mark.parametrize(
    ("status", "payload", "config"),
    [
        (200, body(), {}),
        (400, b"[" * SIZE, {}),
        (400, b'{"pad":"' + b"x" * SIZE, {}),
        (404, body("unknown"), {}),
        (413, body(), {"max_body_bytes": SIZE // 2, "max_parked_body_bytes": SIZE}),
    ],
)
def test_a_request_that_is_answered_at_once(status: int, payload: object, config: dict[str, Any]) -> None:
    leaves_nothing(expect(status, payload), **config)


@pytest.mark.parametrize(
    ("status", "payload", "headers"),
    [
        (415, body(), {"content_encoding": "nonsense"}),
        (400, body(), {"content_encoding": "gzip"}),
        (400, gzip.compress(b"[" * SIZE), {"content_encoding": "gzip"}),
        (200, gzip.compress(LARGE), {"content_encoding": "gzip"}),
        (200, LARGE, {}),
        (404, LARGE.replace(b'"m"', b'"n"'), {}),
        (400, LARGE[:-1], {}),
        (400, b"[" * len(LARGE), {}),
        (400, {"program_id": 5, **body()}, {}),
        (400, LARGE.replace(b'"pad"', b'"program_id":5,"pad"'), {}),
    ],
)
@pytest.mark.parametrize("programs", [None, {"backend_capacity_tokens": 10_000_000}])
def test_a_body_that_is_large_or_encoded(
    status: int, payload: Any, headers: dict[str, str], programs: dict[str, Any] | None
) -> None:
    has_id = b"program_id" in payload if isinstance(payload, bytes) else "program_id" in payload
    routing = RoutingConfig(policy="cache-aware")
    leaves_nothing(
        expect(200 if has_id and programs is None else status, payload, **headers), programs=programs, routing=routing
    )


@pytest.mark.parametrize("unknown", [False, True])
def test_a_form(unknown: bool) -> None:
    parts = b"--b\r\ncontent-disposition: form-data; name=model\r\n\r\n%b\r\n--b\r\n\r\n" % (b"n" if unknown else b"m")

    async def once(w: GatewayWorld) -> None:
        form = {"content_type": "multipart/form-data; boundary=b"}
        status, _, _ = await w.request("/v1/audio/transcriptions", parts + b"x" * len(LARGE), **form)
        assert status == (404 if unknown else 200)

    leaves_nothing(once)


@pytest.mark.parametrize("path", ["/sleep", "/admin/drain", "/programs/release", "/v1/responses/x"])
@pytest.mark.parametrize("key", ["tenant", "shared"])
def test_a_path_of_the_operator(path: str, key: str) -> None:
    async def once(w: GatewayWorld) -> None:
        await w.request(path, body(), authorization=f"Bearer {key}")

    keys = {"api_key": "shared", "tenant_api_keys": {"t": "tenant"}}
    leaves_nothing(once, programs={"backend_capacity_tokens": 10_000_000}, **keys)


async def refuse_options(received: BackendRequest) -> None:
    if b"stream_options" in received.body:
        await received.send(whole(b'{"error":"no stream_options"}', b"400 Bad Request"))
    else:
        await stream(received)


def test_a_question_for_the_usage_that_is_taken_back() -> None:
    leaves_nothing(expect(200, body(stream=True)), Backend(refuse_options), programs={"backend_capacity_tokens": 10_000_000})


async def break_off(received: BackendRequest) -> None:
    raise ConnectionError


async def truncate(received: BackendRequest) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
    raise ConnectionError


async def stall(received: BackendRequest) -> None:
    await received.wait_until_disconnected()


async def fail(received: BackendRequest) -> None:
    await received.send(whole(b"{}", b"500 Oops"))


async def babble(received: BackendRequest) -> None:
    await received.send(b"nonsense\r\n\r\n")


async def stream(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD + chunk(b"data: {}\n\n") + chunk(b""))


async def answer_error_in_stream(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD + chunk(b'data: {"error":{"message":"no","code":500}}\n\n') + chunk(b""))


NO_PAUSE = {"retry": RetryConfig(initial_backoff_secs=0), "ejection": EjectionConfig(enabled=False)}


@pytest.mark.parametrize(
    ("responders", "status", "config"),
    [
        ((break_off,), 502, {}),
        ((break_off, break_off), 502, {}),
        ((babble,), 502, {}),
        ((stall,), 504, {"upstream": UpstreamLimits(head_secs=0.02)}),
        ((fail,), 500, {}),
        ((fail, fail), 500, {}),
        ((fail, stream), 200, {}),
        ((break_off, stream), 200, {}),
        ((answer_error_in_stream, stream), 200, {}),
        ((stream,), 200, {}),
        ((answer_error_in_stream,), 200, {}),
    ],
)
def test_a_backend_that_fails(responders: tuple[Any, ...], status: int, config: dict[str, Any]) -> None:
    leaves_nothing(expect(status, body(stream=True)), *map(Backend, responders), **NO_PAUSE, **config)


@pytest.mark.parametrize(
    ("priority", "status"), [("default", 429), ("bulk", 408)], ids=["its queue is full", "it waits for too long"]
)
def test_a_request_that_gets_no_slot(priority: str, status: int) -> None:
    async def scenario() -> None:
        async with world(Backend(held := GatedAnswer()), slots=1, admission=QUEUE, health_interval_secs=30) as w:
            blocker = await hold(w)
            await measure(w, expect(status, x_smg_priority=priority), kept=1)
            held.open.set()
            await blocker.read_response()
            blocker.disconnect()

    run_on_sockets(scenario())


async def hold(w: GatewayWorld) -> ClientConnection:
    """Let a small request take the only slot, and return its connection, which the world forgets."""
    connection = await w.start_request()
    await w.wait_until(lambda: w.state.in_flight == 1)
    w._connections.remove(connection)
    return connection


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_a_victim(on_preempt: str) -> None:
    async def respond(received: BackendRequest) -> None:
        if len(received.body) < SIZE or received.body.count(b"again"):
            await received.send(whole(b"{}"))
        else:
            await stall(received)

    async def once(w: GatewayWorld) -> None:
        engine = w.backends[0]
        victim = await w.start_request(body(), x_smg_priority="bulk")
        await w.wait_until(lambda: engine.received)
        engine.received.clear()
        vip = await w.start_request(x_smg_priority="interactive")
        assert (await vip.read_response())[0] == 200
        if on_preempt == "reject":
            assert (await victim.read_response())[0] == 503
        else:
            await w.wait_until(lambda: engine.received)
            victim.disconnect()
        await w.wait_until_idle()

    leaves_nothing(once, Backend(respond), slots=1, admission={**PREEMPTING, "on_preempt": on_preempt})


async def leave_queue(w: GatewayWorld) -> None:
    queued = await w.start_request(body())
    await w.wait_until(lambda: w.state.waiting == 1)
    queued.disconnect()
    await w.wait_until(lambda: w.state.waiting == 0)


async def leave_upload(w: GatewayWorld) -> None:
    connection = await w.connect()
    connection.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (SIZE + 1))
    connection.writer.write(b"x" * SIZE)
    await w.wait_until(lambda: w.state.parked_body_bytes >= SIZE)
    connection.disconnect()
    await w.wait_until(lambda: w.state.parked_body_bytes < SIZE)


@pytest.mark.parametrize("once", [leave_queue, leave_upload])
def test_a_client_that_leaves_before_its_request_is_sent(once: Once) -> None:
    async def scenario() -> None:
        async with world(Backend(held := GatedAnswer()), slots=1, health_interval_secs=30) as w:
            blocker = await hold(w)
            await measure(w, once, kept=1)
            held.open.set()
            await blocker.read_response()
            blocker.disconnect()

    run_on_sockets(scenario())


async def begin_stream(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD + chunk(b"data: {}\n\n"))
    await stall(received)


async def leave_backend(w: GatewayWorld) -> None:
    client = await w.start_request(body(stream=True))
    await w.wait_until(lambda: w.backends[0].received)
    w.backends[0].received.clear()
    if w.backends[0].respond is begin_stream:
        await client.read_head()
    client.disconnect()
    await w.wait_until_idle()


@pytest.mark.parametrize("respond", [stall, begin_stream])
@pytest.mark.parametrize("programs", [None, {}])
def test_a_client_that_leaves_while_its_request_is_served(respond: Any, programs: dict[str, Any] | None) -> None:
    leaves_nothing(leave_backend, Backend(respond), programs=programs)


def test_a_backend_that_cannot_be_reached() -> None:
    async def scenario() -> None:
        async with world(health_interval_secs=30) as w:
            await w.backends[0].stop()
            await w.request()
            await measure(w, expect(503))

    run_on_sockets(scenario())


@pytest.mark.parametrize("piece", [b"data: {}\n", b"data: {}\n\n"], ids=["in an event", "behind an event"])
def test_an_answer_that_breaks_off(piece: bytes) -> None:
    async def once(w: GatewayWorld) -> None:
        client = await w.start_request(body(stream=True))
        said = b""
        with contextlib.suppress(asyncio.IncompleteReadError):
            said = (await client.read_response())[2]
        assert (b"upstream_truncated" in said) == piece.endswith(b"\n\n")

    async def cut(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(piece))
        raise ConnectionError

    leaves_nothing(once, Backend(cut), **NO_PAUSE)


def test_slots_that_are_learned() -> None:
    leaves_nothing(expect(200, body(stream=True)), Backend(stream), slots=None, slots_from="learned")


def test_bytes_that_are_no_request() -> None:
    async def once(w: GatewayWorld) -> None:
        connection = await w.connect()
        connection.writer.write(b"POST / HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 9\r\n\r\n" + b"x" * 9)
        assert (await connection.read_response())[0] == 400

    leaves_nothing(once)


@pytest.mark.parametrize("keepalive", [0, 0.005])
def test_a_program_that_waits_for_memory_and_is_released(keepalive: float) -> None:
    async def once(w: GatewayWorld) -> None:
        waiting = await w.start_request(body(program_id="b", stream=True))
        await w.wait_until(lambda: driver(w).core.num_waiting == 1)
        if keepalive:
            assert (await waiting.read_head())[0] == 200
        driver(w).release("ip:127.0.0.1", "b")
        await w.wait_until(lambda: len(driver(w).leases) == 1)

    async def scenario() -> None:
        programs = {"backend_capacity_tokens": 120_000, "wait_keepalive_secs": keepalive}
        async with world(Backend(held := GatedAnswer()), programs=programs, health_interval_secs=30) as w:
            blocker = await w.start_request(body(program_id="a"))
            await w.wait_until(lambda: w.state.in_flight == 1)
            w._connections.remove(blocker)
            await measure(w, once, kept=1)
            held.open.set()
            await blocker.read_response()
            blocker.disconnect()

    run_on_sockets(scenario())


@pytest.mark.parametrize(("responders", "status"), [((break_off, stream), 200), ((fail, fail), 500), ((stream, stream), 200)])
def test_a_program_whose_backend_fails(responders: tuple[Any, ...], status: int) -> None:
    once = expect(status, body(program_id="a", stream=True))
    leaves_nothing(once, *map(Backend, responders), programs={"backend_capacity_tokens": 1_000_000}, **NO_PAUSE)


def test_a_backend_that_is_given_up_by_its_polls() -> None:
    async def once(w: GatewayWorld) -> None:
        first, fleet = w.backends[0], w.gateway.scheduler.fleet
        client = await w.start_request(body())
        await w.wait_until(lambda: first.received or w.backends[1].received)
        if first.received:
            fleet.mark_down(fleet.backends[0], "a test")
            fleet._abandon(fleet.backends[0].requests)
        assert (await client.read_response())[0] == 200
        first.received.clear()
        w.backends[1].received.clear()
        await w.gateway.scheduler.watch.poll_now(fleet.backends[0])

    leaves_nothing(once, Backend(stall), Backend())


@pytest.mark.parametrize(("piece", "pieces", "requests"), [(65_536, 6, REQUESTS), (2, 20_000, 1)])
def test_a_body_that_waits_is_in_memory_once(piece: int, pieces: int, requests: int) -> None:
    """However small its pieces: of two bytes, one that is kept as an object takes 35."""

    async def scenario() -> None:
        sent = [chunk(b'{"model":"m"'), *[chunk(b" " * piece)] * pieces, chunk(b"}"), chunk(b"")]
        async with world(Backend(held := GatedAnswer()), slots=1, health_interval_secs=30) as w:
            blocker = await hold(w)
            before = tracemalloc.get_traced_memory()[0]
            waiting = [await w.connect() for _ in range(requests)]
            for client in waiting:
                client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
                client.writer.write(b"".join(sent))
            await w.wait_until(lambda: w.state.waiting == requests)
            assert tracemalloc.get_traced_memory()[0] - before < requests * (piece * pieces * 1.2 + 100_000)
            held.open.set()
            for client in (blocker, *waiting):
                assert (await client.read_response())[0] == 200
            blocker.disconnect()

    run_on_sockets(scenario())
