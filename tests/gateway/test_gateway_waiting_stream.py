"""What fills the silence of a stream while its program waits for memory."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from test_gateway_programs import ONE_AT_A_TIME, body, driver, program, usage, waiting
from world import STREAM_HEAD, Backend, BackendRequest, ClientConnection, GatewayWorld, chunk, run, whole, world

from maitred.gateway.forwarding.waiting_stream import MAX_ANSWER_BYTES
from maitred.programs import ProgramState

COMMENT = b": keepalive\n\n"
EVENTS = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
STREAM = STREAM_HEAD + chunk(EVENTS) + chunk(b"")
COMMENTS = {**ONE_AT_A_TIME, "wait_keepalive_secs": 0.02}


class Engine:
    """Answers the first request, which holds all memory, when `may_end` is set, and those after it with `answer` at once."""

    def __init__(self, answer: bytes = STREAM) -> None:
        self.may_end = asyncio.Event()
        self.answer = answer

    async def __call__(self, received: BackendRequest) -> None:
        if b"first" in received.body:
            await self.may_end.wait()
            await received.send(whole(usage(1500)))
        else:
            await received.send(self.answer)


async def start_two(w: GatewayWorld, *, stream: bool = True) -> ClientConnection:
    """Let a stream wait for the memory that the first program has, and return its connection."""
    await w.start_request(body("a", 1500, mark="first"))
    await w.wait_until(lambda: w.backends[0].received)
    second = await w.start_request(body("b", 1500, stream=stream), x_request_id="mine")
    await waiting(w, 1)
    return second


async def comments(client: ClientConnection) -> None:
    """Read the head of a stream, and three comments."""
    status, headers = await client.read_head()
    assert (status, headers["content-type"], headers["x-request-id"]) == (200, "text/event-stream", "mine")
    assert [await client.read_chunk() for _ in range(3)] == [COMMENT] * 3


async def rest(client: ClientConnection) -> bytes:
    """Return the rest of a stream without its comments."""
    read = b""
    while piece := await client.read_chunk():
        read += piece
    return read.replace(COMMENT, b"")


def make_room(w: GatewayWorld, engine: Engine) -> None:
    engine.may_end.set()
    driver(w).release("ip:127.0.0.1", "a")


def answer_behind_comments(answer: bytes) -> bytes:
    """Return what the client gets behind the comments if its backend answers like that."""

    async def scenario() -> bytes:
        async with world(Backend(engine := Engine(answer)), programs=COMMENTS) as w:
            client = await start_two(w)
            await comments(client)
            make_room(w, engine)
            return await rest(client)

    return run(scenario())


def test_a_stream_that_waits_gets_comments_and_then_its_events() -> None:
    assert answer_behind_comments(STREAM) == EVENTS


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (whole(b'{"error":\n{"code":1}}', b"400 Bad Request"), b'data: {"error":{"code":1,"message":'),
        (STREAM.replace(b"200 OK", b"500 Oops"), b'data: {"error":{"message":"data: {'),
        (whole(b"Internal\nServer Error", b"500 Oops"), b'data: {"error":{"message":"Internal Server Error"'),
        (
            whole(b"x" * (MAX_ANSWER_BYTES + 1)),
            b'data: {"error":{"message":"the backend has answered with no stream, and with more',
        ),
        (whole(b'{"choices":[]}'), b'data: {"choices":[]}\n\n'),
        (whole(b"\x1f\x8b", headers=b"content-encoding: br\r\n"), b'data: {"error":{"message":"the backend has encoded'),
        (b"nonsense\r\n\r\n", b'data: {"error":{"message":"'),
    ],
    ids=["an error", "events of an error", "a text", "too large", "no stream", "encoded", "no answer"],
)
def test_another_answer_comes_as_an_event(answer: bytes, shown: bytes) -> None:
    said = answer_behind_comments(answer)
    assert said.startswith(shown)
    assert said.endswith(b"\n\n")
    assert said.count(b"\n") == 2


def test_a_refusal_comes_as_an_event() -> None:
    async def scenario() -> bytes:
        async with world(Backend(engine := Engine()), programs=COMMENTS) as w:
            client = await start_two(w)
            await comments(client)
            driver(w).release("ip:127.0.0.1", "b")
            said = await rest(client)
            engine.may_end.set()
            return said

    said = run(scenario())
    assert said.startswith(b"data: ")
    assert msgspec.json.decode(said.removeprefix(b"data: "))["error"]["code"] == "program_released"


@pytest.mark.parametrize(
    ("programs", "stream"), [(ONE_AT_A_TIME, True), ({**COMMENTS, "wait_keepalive_secs": 10}, True), (COMMENTS, False)]
)
def test_other_requests_get_none(programs: dict[str, Any], stream: bool) -> None:
    """A stream that does not ask for comments, one that gets its memory in time, and a request that is not streamed."""

    async def scenario() -> None:
        async with world(Backend(engine := Engine(whole(b"no", b"404 Not Found"))), programs=programs) as w:
            client = await start_two(w, stream=stream)
            await asyncio.sleep(0.1)  # a silence in which comments would come
            make_room(w, engine)
            status, _, answer = await client.read_response()
            assert (status, answer) == (404, b"no")

    run(scenario())


def test_a_stream_that_does_not_wait_is_as_ever() -> None:
    async def scenario() -> None:
        async with world(Backend(Engine()), programs={"wait_keepalive_secs": 0.001}) as w:
            _, headers, answer = await w.request(body=body("b", 1500, stream=True))
            assert (answer, "cache-control" in headers) == (EVENTS, False)

    run(scenario())


def test_a_client_that_leaves_during_comments_frees_its_place() -> None:
    async def scenario() -> None:
        async with world(Backend(engine := Engine()), programs=COMMENTS) as w:
            client = await start_two(w)
            await comments(client)
            client.disconnect()
            await waiting(w, 0)
            assert [p.key.name for p in driver(w).core.programs] == ["a"]
            assert program(w, "a").state is ProgramState.ACTIVE
            engine.may_end.set()

    run(scenario())


def test_comments_go_on_until_the_response_begins() -> None:
    """With its memory the request still waits for its backend."""
    begin = asyncio.Event()

    class Slow(Engine):
        async def __call__(self, received: BackendRequest) -> None:
            if b"first" not in received.body:
                await begin.wait()
            await super().__call__(received)

    async def scenario() -> None:
        async with world(Backend(engine := Slow()), programs=COMMENTS) as w:
            client = await start_two(w)
            await comments(client)
            make_room(w, engine)
            await w.wait_until(lambda: len(w.backends[0].received) == 2)
            assert [await client.read_chunk() for _ in range(3)] == [COMMENT] * 3
            begin.set()
            assert await rest(client) == EVENTS

    run(scenario())


def test_an_answer_without_end_that_is_no_stream_is_read_no_further() -> None:
    class Endless(Engine):
        def __init__(self) -> None:
            super().__init__(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            self.stopped = asyncio.Event()

        async def __call__(self, received: BackendRequest) -> None:
            await super().__call__(received)
            try:
                while b"first" not in received.body:
                    await received.send(chunk(b"x" * 65_536))
            except ConnectionError:
                self.stopped.set()
                raise

    async def scenario() -> None:
        async with world(Backend(engine := Endless()), programs=COMMENTS) as w:
            client = await start_two(w)
            await comments(client)
            make_room(w, engine)
            assert b"with no stream, and with more than can be kept" in await rest(client)
            await engine.stopped.wait()

    run(scenario())
