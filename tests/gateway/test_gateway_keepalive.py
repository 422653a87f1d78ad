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
            assert w.gateway.counts.ttft[0].count == 0
            slow.go_on.set()
            pieces = [piece async for piece in rest(wire)]
            assert b"".join(piece for piece in pieces if piece != COMMENT) == b": x\n\ndata: 1\n\ndata: 2\n\n"
            assert (await vip.reply())[0] == 200
            assert (w.state.classes["bulk"].completed, w.gateway.counts.ttft[0].count) == (1, 1)

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
