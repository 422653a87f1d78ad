"""Comments that keep a connection alive. Until its backend sends data, a request can still be retried, or preempted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from world import ANSWER, CHAT, STREAM_HEAD, Backend, BackendRequest, ClientConnection, GatedAnswer, chunk, run, whole, world

from maitred.core.request import PriorityClass
from maitred.gateway.forwarding.stream_dialects import dialect_of
from maitred.gateway.forwarding.waiting_stream import WaitingStream
from maitred.wire.messages import Headers

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


def test_comments_do_not_keep_a_victim_from_preemption() -> None:
    async def scenario() -> bytes:
        async with world(Backend(Slow()), slots=1, admission=PREEMPTING, sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, x_slow="1", x_smg_priority="bulk")
            status, headers = await connection.read_head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert [await connection.read_chunk() for _ in range(3)] == [COMMENT] * 3
            ttft = w.gateway.request_metrics.series(PriorityClass.BULK, "m").ttft
            assert (await w.request(x_smg_priority="interactive"))[0] == 200
            assert ttft.count == 0
            return b"".join([piece async for piece in rest(connection)]).replace(COMMENT, b"")

    assert msgspec.json.decode(run(scenario()).removeprefix(b"data: "))["error"]["code"] == "scheduler_preempted"


async def rest(connection: ClientConnection) -> AsyncIterator[bytes]:
    while piece := await connection.read_chunk():
        yield piece


def test_none_are_sent_unless_asked_for() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow())) as w:
            connection = await w.start_request(STREAM, x_slow="1")
            await asyncio.sleep(0.05)  # a silence in which comments would come
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


def test_a_backend_that_dies_after_the_first_comment_is_replaced() -> None:
    async def scenario() -> bytes:
        slow = Slow(b"")
        async with world(Backend(slow), Backend(slow), sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, x_slow="1")
            await connection.read_head()
            assert await connection.read_chunk() == COMMENT
            slow.go_on.set()
            said = b"".join([piece async for piece in rest(connection)]).replace(COMMENT, b"")
            assert [len(backend.received) for backend in w.backends] == [1, 1]
            return said

    assert msgspec.json.decode(run(scenario()).removeprefix(b"data: "))["error"]["code"] == "upstream_truncated"


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
                await asyncio.sleep(0.07)  # three times the silence after which a comment comes
                respond.go_on()
                assert await connection.read_chunk() == end
                got += end
            assert await connection.read_chunk() == COMMENT
            respond.go_on()
            return got

    assert run(scenario()).replace(COMMENT, b"") == b"data: 1\n\ndata: 2\n\n"


class Written:
    """Takes what a client would be sent."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.pieces: list[bytes] = []

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> None:
        self.heads.append(status)
        self.pieces.append(piece)

    def send_piece(self, piece: bytes, more: bool) -> None:
        self.pieces.append(piece)


def silences(path: str, headers: Headers, *pieces: bytes) -> list[list[bytes]]:
    """Return what a client gets in the silences before the first of `pieces` (after the head of the backend) and after each."""

    async def scenario() -> list[list[bytes]]:
        written = Written()
        stream = WaitingStream(written, dialect_of(path), [], 0.0, 0.001)
        stream.on_stream_head(headers)
        found = []
        for number, piece in enumerate((b"", *pieces)):
            if number == 1:
                stream.start_response(200, headers, piece, True)
            elif piece:
                stream.send_piece(piece, True)
            begin = len(written.pieces)
            await asyncio.sleep(0.05)  # a silence of many intervals
            found.append(sorted(set(written.pieces[begin:])))
        stream.stop()
        return found

    return run(scenario())


EVENT_STREAM = (b"content-type", b"text/event-stream")


@pytest.mark.parametrize("header", [(b"content-length", b"9"), (b"content-encoding", b"br")])
def test_no_comment_goes_where_it_would_break_the_body(header: tuple[bytes, bytes]) -> None:
    """The length of the body is in its head, or its bytes are encoded."""
    assert silences(CHAT, [EVENT_STREAM, header], b"data: 1\n\n") == [[], []]


PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def test_no_comment_follows_an_id() -> None:
    pieces = b"data: 1\n\n", b"i", b"d: 7\r\ndata: 2\r\n\r\n", b"data: 3\n\n"
    assert silences(CHAT, [EVENT_STREAM], *pieces) == [[COMMENT], [COMMENT], [], [], []]
    assert silences("/v1/messages", [EVENT_STREAM], *pieces) == [[PING], [PING], [], [PING], [PING]]


def test_an_id_in_the_data_is_none() -> None:
    assert silences(CHAT, [EVENT_STREAM], b'data: {"id":1}\n\n', b"data: id:\n\n") == [[COMMENT]] * 3


@pytest.mark.parametrize(
    "admission", [{}, {"mode": "legacy", "legacy": {"max_concurrent_requests": 1, "queue_size": 5}}], ids=["priority", "legacy"]
)
def test_a_stream_in_the_queue_gets_comments(admission: dict[str, object]) -> None:
    async def scenario() -> bytes:
        gate = GatedAnswer()
        async with world(Backend(gate), slots=1, admission=admission, sse_keepalive_secs=0.02) as w:
            first = await w.start_request()
            await w.wait_until(lambda: w.backends[0].received)
            second = await w.start_request(STREAM)
            assert (await second.read_head())[0] == 200
            assert [await second.read_chunk() for _ in range(3)] == [COMMENT] * 3
            assert w.state.waiting == 1
            gate.open.set()
            assert (await first.read_response())[0] == 200
            return b"".join([piece async for piece in rest(second)]).replace(COMMENT, b"")

    assert run(scenario()) == b"data: " + ANSWER + b"\n\n"


def test_a_stream_whose_backend_sends_no_head_gets_comments() -> None:
    async def scenario() -> bytes:
        gate = GatedAnswer()
        async with world(Backend(gate), sse_keepalive_secs=0.02) as w:
            connection = await w.start_request(STREAM, accept_encoding="gzip")
            assert (await connection.read_head())[0] == 200
            assert await connection.read_chunk() == COMMENT
            assert w.backends[0].received[0].headers[b"accept-encoding"] == b"identity"
            gate.open.set()
            return b"".join([piece async for piece in rest(connection)]).replace(COMMENT, b"")

    assert run(scenario()) == b"data: " + ANSWER + b"\n\n"


def test_a_client_that_does_not_read_is_sent_one_comment_at_most() -> None:
    async def scenario() -> int:
        respond = Pausing(chunk(b"data: " + b"x" * 8_000_000 + b"\n\n"), END)
        async with world(Backend(respond), sse_keepalive_secs=0.01) as w:
            respond.go_on()
            connection = await w.start_request(STREAM)
            connection.writer.transport.pause_reading()
            await asyncio.sleep(0.1)  # ten intervals
            respond.go_on()
            connection.writer.transport.resume_reading()
            await connection.read_head()
            body = b"".join([piece async for piece in rest(connection)])
            assert len(body.replace(COMMENT, b"")) == 8_000_008
            return body.count(COMMENT)

    assert run(scenario()) <= 3  # before its first byte, and while the last of the data was read
