"""Comments that keep a client's connection alive: from the first one on, a request counts as one whose data has been sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from world import ANSWER, STREAM_HEAD, Backend, BackendRequest, ClientConnection, chunk, run, whole, world

from maitred.core.request import PriorityClass

PREEMPTING = {"classes": {"interactive": {"can_preempt": True}}}
STREAM = {"model": "m", "stream": True}
COMMENT = b": keepalive\n\n"


class Slow:
    """Sends the head of a stream at once, and the rest when `go_on` is set; answers interactive requests at once."""

    def __init__(self, rest: bytes = chunk(b": x\n\ndata: 1\n\n") + chunk(b"data: 2\n\n") + b"0\r\n\r\n") -> None:
        self.go_on = asyncio.Event()
        self.rest = rest

    async def __call__(self, received: BackendRequest) -> None:
        if b"x-slow" not in received.head:
            await received.send(whole(ANSWER))
            return
        await received.send(STREAM_HEAD)
        await self.go_on.wait()
        await received.send(self.rest)
        if not self.rest.endswith(b"0\r\n\r\n"):
            raise ConnectionError


def test_from_the_first_comment_on_it_is_no_victim() -> None:
    async def scenario() -> None:
        async with world(Backend(slow := Slow()), slots=1, admission=PREEMPTING, sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, x_slow="1", x_smg_priority="bulk")
            status, headers = await connection.read_head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert [await connection.read_chunk() for _ in range(3)] == [COMMENT] * 3
            vip = await w.start_request(x_smg_priority="interactive")
            await w.wait_until(lambda: w.state.waiting)
            ttft = w.gateway.request_metrics.series(PriorityClass.BULK, "m").ttft
            assert ttft.count == 0
            slow.go_on.set()
            pieces = [piece async for piece in rest(connection)]
            assert b"".join(piece for piece in pieces if piece != COMMENT) == b": x\n\ndata: 1\n\ndata: 2\n\n"
            assert (await vip.read_response())[0] == 200
            assert (w.state.classes["bulk"].completed, ttft.count) == (1, 1)

    run(scenario())


async def rest(connection: ClientConnection) -> AsyncIterator[bytes]:
    while piece := await connection.read_chunk():
        yield piece


def test_none_are_sent_unless_asked_for() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow())) as w:
            connection = await w.start_request(STREAM, x_slow="1")
            await asyncio.sleep(0.05)
            slow.go_on.set()
            return (await connection.read_response())[2]

    assert run(scenario()) == b": x\n\ndata: 1\n\ndata: 2\n\n"


def test_a_stream_that_begins_in_time_gets_none() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow()), sse_keepalive_secs=10.0) as w:
            slow.go_on.set()
            return (await w.request(body=STREAM, x_slow="1"))[2]

    assert run(scenario()) == b": x\n\ndata: 1\n\ndata: 2\n\n"


def test_a_stream_without_any_data_ends_as_it_is() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow(b"0\r\n\r\n")), sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, x_slow="1")
            await connection.read_head()
            assert await connection.read_chunk() == COMMENT
            slow.go_on.set()
            return b"".join([piece async for piece in rest(connection)]).replace(COMMENT, b"")

    assert run(scenario()) == b""


def test_a_backend_that_dies_after_the_first_comment_cuts_the_answer() -> None:
    """No other backend can take over: the client has received a head already."""

    async def scenario() -> None:
        slow = Slow(b"")
        async with world(Backend(slow), Backend(slow), sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, x_slow="1")
            await connection.read_head()
            assert await connection.read_chunk() == COMMENT
            slow.go_on.set()
            with pytest.raises(asyncio.IncompleteReadError):
                [piece async for piece in rest(connection)]
            await w.wait_until_idle()
            assert w.state.classes["default"].failed == 1
            assert sum(len(backend.received) for backend in w.backends) == 1

    run(scenario())


def test_who_leaves_after_the_first_comment() -> None:
    async def scenario() -> None:
        async with world(Backend(Slow()), sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, x_slow="1")
            await connection.read_head()
            assert await connection.read_chunk() == COMMENT
            connection.disconnect()
            await w.wait_until_idle()
            assert w.state.classes["default"].client_gone == 1

    run(scenario())


class Pausing:
    """Sends one of `pieces` each time it may go on, and the end of the stream after the last."""

    def __init__(self, *pieces: bytes, head: bytes = STREAM_HEAD) -> None:
        self.head, self.pieces = head, pieces
        self._turns = asyncio.Semaphore(0)

    def go_on(self, times: int = 1) -> None:
        for _ in range(times):
            self._turns.release()

    async def __call__(self, received: BackendRequest) -> None:
        await received.send(self.head)
        for piece in self.pieces:
            await self._turns.acquire()
            await received.send(piece)


END = b"0\r\n\r\n"


def test_a_stream_that_falls_silent_later_gets_comments_too() -> None:
    async def scenario() -> None:
        respond = Pausing(chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), END)
        async with world(Backend(respond), sse_keepalive_secs=0.02) as w:
            respond.go_on()
            connection = await w.start_request(STREAM)
            await connection.read_head()
            got = [await connection.read_chunk() for _ in range(3)]
            while got[-2:] != [COMMENT] * 2:  # its first data may have come late, and a comment before it
                got.append(await connection.read_chunk())
            respond.go_on(2)
            got += [piece async for piece in rest(connection)]
            assert b"".join(piece for piece in got if piece != COMMENT) == b"data: 1\n\ndata: 2\n\n"
            await connection.send_request(body=STREAM)  # the connection is at the beginning of an answer, and not in a comment
            respond.go_on(3)
            assert (await connection.read_head())[0] == 200
            assert b"".join([piece async for piece in rest(connection)]).replace(COMMENT, b"") == b"data: 1\n\ndata: 2\n\n"

    run(scenario())


def test_no_comment_falls_into_an_event() -> None:
    async def scenario() -> bytes:
        respond = Pausing(chunk(b"data: 1\n\ndata: "), chunk(b"2\n"), chunk(b"\n"), END)
        async with world(Backend(respond), sse_keepalive_secs=0.02) as w:
            respond.go_on()
            connection = await w.start_request(STREAM)
            await connection.read_head()
            got = b""
            while not got.endswith(b"data: "):
                got += await connection.read_chunk()
            for end in (b"2\n", b"\n"):
                await asyncio.sleep(0.07)
                respond.go_on()
                assert await connection.read_chunk() == end
                got += end
            assert await connection.read_chunk() == COMMENT
            respond.go_on()
            return got

    assert run(scenario()).replace(COMMENT, b"") == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("header", [b"content-length: 9", b"transfer-encoding: chunked\r\ncontent-encoding: br"])
def test_no_comment_goes_where_it_would_break_the_body(header: bytes) -> None:
    """The length of the body is in its head, or its bytes are encoded."""

    async def scenario() -> bytes:
        pieces = [chunk(b"data"), chunk(b": 1\n\n"), END] if b"chunked" in header else [b"data", b": 1\n\n"]
        respond = Pausing(*pieces, head=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + header + b"\r\n\r\n")
        async with world(Backend(respond), sse_keepalive_secs=0.01) as w:
            connection = await w.start_request(STREAM)
            for _ in pieces:
                await asyncio.sleep(0.04)
                respond.go_on()
            return (await connection.read_response())[2]

    assert run(scenario()) == b"data: 1\n\n"


def test_a_client_that_does_not_read_is_sent_one_comment_at_most() -> None:
    async def scenario() -> int:
        respond = Pausing(chunk(b"data: " + b"x" * 8_000_000 + b"\n\n"), END)
        async with world(Backend(respond), sse_keepalive_secs=0.01) as w:
            respond.go_on()
            connection = await w.start_request(STREAM)
            connection.writer.transport.pause_reading()
            await asyncio.sleep(0.3)
            respond.go_on()
            connection.writer.transport.resume_reading()
            await connection.read_head()
            body = b"".join([piece async for piece in rest(connection)])
            assert len(body.replace(COMMENT, b"")) == 8_000_008
            return body.count(COMMENT)

    assert run(scenario()) <= 3  # before its first byte, and while the last of the data was read
