"""Comments that keep a client's connection alive: from the first of them on its request is like one that has shown data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from world import ANSWER, STREAM_HEAD, Backend, Turn, Wire, chunk, run, whole, world

PREEMPTING = {"classes": {"interactive": {"can_preempt": True}}}
STREAM = {"model": "m", "stream": True}
COMMENT = b": keepalive\n\n"


class Slow:
    """Sends the head of a stream at once, and the rest when told to; answers interactive requests at once."""

    def __init__(self, rest: bytes = chunk(b": x\n\ndata: 1\n\n") + chunk(b"data: 2\n\n") + b"0\r\n\r\n") -> None:
        self.go_on = asyncio.Event()
        self.rest = rest

    async def __call__(self, turn: Turn) -> None:
        if b"x-slow" not in turn.head:
            await turn.say(whole(ANSWER))
            return
        await turn.say(STREAM_HEAD)
        await self.go_on.wait()
        await turn.say(self.rest)
        if not self.rest.endswith(b"0\r\n\r\n"):
            raise ConnectionError


def test_from_the_first_comment_on_it_is_no_victim() -> None:
    async def scenario() -> None:
        async with world(Backend(slow := Slow()), slots=1, admission=PREEMPTING, sse_keepalive_secs=0.02) as w:
            wire = await w.asking(STREAM, x_slow="1", x_smg_priority="bulk")
            status, headers = await wire.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert [await wire.chunk() for _ in range(3)] == [COMMENT] * 3
            vip = await w.asking(x_smg_priority="interactive")
            await w.until(lambda: w.state.waiting)
            assert w.gateway.counters.ttft[0].count == 0
            slow.go_on.set()
            pieces = [piece async for piece in rest(wire)]
            assert b"".join(piece for piece in pieces if piece != COMMENT) == b": x\n\ndata: 1\n\ndata: 2\n\n"
            assert (await vip.reply())[0] == 200
            assert (w.state.classes["bulk"].completed, w.gateway.counters.ttft[0].count) == (1, 1)

    run(scenario())


async def rest(wire: Wire) -> AsyncIterator[bytes]:
    while piece := await wire.chunk():
        yield piece


def test_none_are_sent_unless_asked_for() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow())) as w:
            wire = await w.asking(STREAM, x_slow="1")
            await asyncio.sleep(0.05)
            slow.go_on.set()
            return (await wire.reply())[2]

    assert run(scenario()) == b": x\n\ndata: 1\n\ndata: 2\n\n"


def test_a_stream_that_begins_in_time_gets_none() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow()), sse_keepalive_secs=10.0) as w:
            slow.go_on.set()
            return (await w.ask(body=STREAM, x_slow="1"))[2]

    assert run(scenario()) == b": x\n\ndata: 1\n\ndata: 2\n\n"


def test_a_stream_without_any_data_ends_as_it_is() -> None:
    async def scenario() -> bytes:
        async with world(Backend(slow := Slow(b"0\r\n\r\n")), sse_keepalive_secs=0.02) as w:
            wire = await w.asking(STREAM, x_slow="1")
            await wire.head()
            assert await wire.chunk() == COMMENT
            slow.go_on.set()
            return b"".join([piece async for piece in rest(wire)]).replace(COMMENT, b"")

    assert run(scenario()) == b""


def test_a_backend_that_dies_after_the_first_comment_cuts_the_answer() -> None:
    """Another one cannot take over: the client has a head already."""

    async def scenario() -> None:
        slow = Slow(b"")
        async with world(Backend(slow), Backend(slow), sse_keepalive_secs=0.02) as w:
            wire = await w.asking(STREAM, x_slow="1")
            await wire.head()
            assert await wire.chunk() == COMMENT
            slow.go_on.set()
            with pytest.raises(asyncio.IncompleteReadError):
                [piece async for piece in rest(wire)]
            await w.idle()
            assert w.state.classes["default"].failed == 1
            assert sum(len(backend.turns) for backend in w.backends) == 1

    run(scenario())


def test_who_leaves_after_the_first_comment() -> None:
    async def scenario() -> None:
        async with world(Backend(Slow()), sse_keepalive_secs=0.02) as w:
            wire = await w.asking(STREAM, x_slow="1")
            await wire.head()
            assert await wire.chunk() == COMMENT
            wire.leave()
            await w.idle()
            assert w.state.classes["default"].client_gone == 1

    run(scenario())


class Pausing:
    """Says each of `pieces` when it is told to go on, and the end of the stream after the last."""

    def __init__(self, *pieces: bytes, head: bytes = STREAM_HEAD) -> None:
        self.head, self.pieces = head, pieces
        self._turns = asyncio.Semaphore(0)

    def go_on(self, times: int = 1) -> None:
        for _ in range(times):
            self._turns.release()

    async def __call__(self, turn: Turn) -> None:
        await turn.say(self.head)
        for piece in self.pieces:
            await self._turns.acquire()
            await turn.say(piece)


END = b"0\r\n\r\n"


def test_a_stream_that_falls_silent_later_gets_comments_too() -> None:
    async def scenario() -> None:
        act = Pausing(chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), END)
        async with world(Backend(act), sse_keepalive_secs=0.02) as w:
            act.go_on()
            wire = await w.asking(STREAM)
            await wire.head()
            got = [await wire.chunk() for _ in range(3)]
            while got[-2:] != [COMMENT] * 2:  # its first data may have come late, and a comment before it
                got.append(await wire.chunk())
            act.go_on(2)
            got += [piece async for piece in rest(wire)]
            assert b"".join(piece for piece in got if piece != COMMENT) == b"data: 1\n\ndata: 2\n\n"
            await wire.ask(body=STREAM)  # the connection is at the beginning of an answer, and not in a comment
            act.go_on(3)
            assert (await wire.head())[0] == 200
            assert b"".join([piece async for piece in rest(wire)]).replace(COMMENT, b"") == b"data: 1\n\ndata: 2\n\n"

    run(scenario())


def test_no_comment_falls_into_an_event() -> None:
    async def scenario() -> bytes:
        act = Pausing(chunk(b"data: 1\n\ndata: "), chunk(b"2\n"), chunk(b"\n"), END)
        async with world(Backend(act), sse_keepalive_secs=0.02) as w:
            act.go_on()
            wire = await w.asking(STREAM)
            await wire.head()
            got = b""
            while not got.endswith(b"data: "):
                got += await wire.chunk()
            for end in (b"2\n", b"\n"):
                await asyncio.sleep(0.07)
                act.go_on()
                assert await wire.chunk() == end
                got += end
            assert await wire.chunk() == COMMENT
            act.go_on()
            return got

    assert run(scenario()).replace(COMMENT, b"") == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("header", [b"content-length: 9", b"transfer-encoding: chunked\r\ncontent-encoding: br"])
def test_no_comment_goes_where_it_would_break_the_body(header: bytes) -> None:
    """Whose length was given, or which only looks like text when it is decoded."""

    async def scenario() -> bytes:
        pieces = [chunk(b"data"), chunk(b": 1\n\n"), END] if b"chunked" in header else [b"data", b": 1\n\n"]
        act = Pausing(*pieces, head=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + header + b"\r\n\r\n")
        async with world(Backend(act), sse_keepalive_secs=0.01) as w:
            wire = await w.asking(STREAM)
            for _ in pieces:
                await asyncio.sleep(0.04)
                act.go_on()
            return (await wire.reply())[2]

    assert run(scenario()) == b"data: 1\n\n"


def test_a_client_that_does_not_read_is_sent_one_comment_at_most() -> None:
    async def scenario() -> int:
        act = Pausing(chunk(b"data: " + b"x" * 8_000_000 + b"\n\n"), END)
        async with world(Backend(act), sse_keepalive_secs=0.01) as w:
            act.go_on()
            wire = await w.asking(STREAM)
            wire.writer.transport.pause_reading()
            await asyncio.sleep(0.3)
            act.go_on()
            wire.writer.transport.resume_reading()
            await wire.head()
            body = b"".join([piece async for piece in rest(wire)])
            assert len(body.replace(COMMENT, b"")) == 8_000_008
            return body.count(COMMENT)

    assert run(scenario()) <= 3  # before its first byte, and while the last of the data was read
