"""Flow control between upstream and client: early responses, slow readers, cancelled requests, silence."""

from __future__ import annotations

import asyncio
import time

import pytest
from raw_upstream import Peer, Upstream, answering, client, read_whole, run, upstream

from maitred.wire.client import UpstreamClient
from maitred.wire.errors import Truncated, UpstreamTimeout
from maitred.wire.response import UpstreamResponse

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MIB = 1 << 20


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_an_answer_that_comes_before_the_request_is_through() -> None:
    """It is read at once. The connection is not used again, since the upstream may have read any part of the request."""

    async def scenario() -> int:
        gone = asyncio.Event()

        async def early(peer: Peer) -> None:
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
            await asyncio.sleep(0.05)
            await peer.wait_until_closed()
            gone.set()

        async with upstream(early, answering(OK)) as up, client() as c:
            response = await c.request(up.origin, "POST", "/", body=b"x" * (32 * MIB))
            assert (response.status, await read_whole(response)) == (413, b"big")
            assert await read_whole(await c.request(up.origin, "POST", "/")) == b"ok"
            await gone.wait()
            return up.accepted

    assert run(scenario()) == 2


def test_a_large_body_reaches_a_slow_upstream_whole() -> None:
    async def scenario() -> int:
        size = 0

        async def slow(peer: Peer) -> None:
            nonlocal size
            await peer.reader.readuntil(b"\r\n\r\n")
            while size < 8 * MIB:
                size += len(await peer.reader.read(256 * 1024))
                await asyncio.sleep(0.001)
            await peer.send(OK)

        async with upstream(slow) as up, client() as c:
            await read_whole(await c.request(up.origin, "POST", "/", body=b"x" * (8 * MIB)))
            return size

    assert run(scenario()) == 8 * MIB


class Flood:
    """An upstream that sends without end, and counts what it has sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed_at = 0.0

    async def __call__(self, peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM)
        piece = chunk(b"x" * 65_536)
        try:
            while True:
                await peer.send(piece)
                self.sent += 65_536
        except ConnectionError:
            self.closed_at = time.monotonic()

    async def wait_until_stuck(self) -> int:
        """Wait until the client reads no more, and return how many bytes were sent."""
        before = -1
        while before != self.sent:
            before = self.sent
            await asyncio.sleep(0.05)
        return before


KERNEL = 16 * MIB
"""More than the socket buffers of both ends hold."""


def test_a_reader_that_reads_no_more_holds_the_upstream_back() -> None:
    async def scenario() -> None:
        flood = Flood()
        async with upstream(flood) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            await response.read_piece()
            wait_until_stuck = await flood.wait_until_stuck()
            assert wait_until_stuck < KERNEL
            assert response._buffered < 65_536 + 300_000  # the high-water mark and what one read of the socket brings
            for _ in range(400):
                await response.read_piece()
            assert await flood.wait_until_stuck() > wait_until_stuck
            response.close()

    run(scenario())


def test_a_write_that_is_busy_holds_the_upstream_back() -> None:
    async def scenario() -> None:
        flood = Flood()
        taken = 0
        busy: list[asyncio.Future[None]] = []

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            nonlocal taken
            taken += len(piece)
            if len(busy) == 3:
                return None
            busy.append(asyncio.get_running_loop().create_future())
            return busy[-1]

        async with upstream(flood) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            piping = asyncio.create_task(response.pipe_body(write))
            for round_ in range(3):
                wait_until_stuck = await flood.wait_until_stuck()
                assert len(busy) == round_ + 1
                assert wait_until_stuck < KERNEL + round_ * MIB
                busy[round_].set_result(None)
                await asyncio.sleep(0.01)
            assert await progresses(flood, wait_until_stuck)
            piping.cancel()
            response.close()
        assert taken > wait_until_stuck

    async def progresses(flood: Flood, wait_until_stuck: int) -> bool:
        while flood.sent <= wait_until_stuck + KERNEL:
            await asyncio.sleep(0.01)
        return True

    run(scenario())


def test_pipe_hands_on_everything_and_marks_the_last() -> None:
    async def scenario() -> list[tuple[bytes, bool]]:
        got: list[tuple[bytes, bool]] = []

        async def script(peer: Peer) -> None:
            await peer.request()
            for data in (STREAM + chunk(b"a"), chunk(b"b"), chunk(b"c") + b"0\r\n\r\n"):
                await peer.send(data)
                await asyncio.sleep(0.01)

        async with upstream(script) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            await response.pipe_body(lambda piece, more: got.append((piece, more)))
            assert response.is_complete()
        return got

    assert run(scenario()) == [(b"a", True), (b"b", True), (b"c", False)]


def test_pipe_tells_of_no_end_when_the_body_is_cut_short() -> None:
    async def scenario() -> list[tuple[bytes, bool]]:
        got: list[tuple[bytes, bool]] = []
        async with upstream(answering(STREAM + chunk(b"a"))) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            with pytest.raises(Truncated):
                await response.pipe_body(lambda piece, more: got.append((piece, more)))
        return got

    assert run(scenario()) == [(b"a", True)]


def test_what_arrives_while_the_write_is_busy_comes_after_it_even_if_the_upstream_dies_meanwhile() -> None:
    async def scenario() -> list[tuple[bytes, bool]]:
        got: list[tuple[bytes, bool]] = []
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def write(piece: bytes, more: bool) -> asyncio.Future[None] | None:
            got.append((piece, more))
            return gate if len(got) == 1 else None

        response = UpstreamResponse(NoSource(), 65_536, asyncio.get_running_loop())
        response.on_head(200, [])
        piping = asyncio.create_task(response.pipe_body(write))
        await asyncio.sleep(0)
        response.on_body(b"a", True)
        response.on_body(b"b", True)
        response.on_error(Truncated("cut"))
        await asyncio.sleep(0.005)
        assert got == [(b"a", True)]
        gate.set_result(None)
        with pytest.raises(Truncated):
            await piping
        return got

    assert run(scenario()) == [(b"a", True), (b"b", True)]


class NoSource:
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...


@pytest.mark.parametrize("late", [False, True])
def test_a_write_that_fails_ends_the_pipe_and_the_connection(late: bool) -> None:
    async def scenario() -> None:
        flood = Flood()

        def write(piece: bytes, more: bool) -> asyncio.Future[None]:
            if not late:
                raise RuntimeError("broken")
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(RuntimeError("broken"))
            return future

        async with upstream(flood) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            with pytest.raises(RuntimeError, match="broken"):
                await response.pipe_body(write)
            await closed(flood)

    run(scenario())


async def closed(flood: Flood) -> None:
    while not flood.closed_at:
        await asyncio.sleep(0.001)


def test_closing_a_response_closes_its_connection_at_once() -> None:
    async def scenario() -> None:
        flood = Flood()
        async with upstream(flood) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            await response.read_piece()
            response.close()
            response.close()
            await closed(flood)
            assert c.pool(up.origin).num_open == 0

    run(scenario())


def test_closing_a_response_that_was_read_keeps_its_connection() -> None:
    async def scenario() -> int:
        async with upstream(answering(OK, OK)) as up, client() as c:
            for _ in range(2):
                response = await c.request(up.origin, "POST", "/")
                await read_whole(response)
                response.close()
            return up.accepted

    assert run(scenario()) == 1


def test_cancelling_a_request_before_its_head_closes_the_connection() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def mute(peer: Peer) -> None:
            await peer.wait_until_closed()
            gone.set()

        async with upstream(mute) as up, client() as c:
            asking = asyncio.create_task(c.request(up.origin, "POST", "/"))
            await asyncio.sleep(0.02)
            asking.cancel()
            await gone.wait()
            with pytest.raises(asyncio.CancelledError):
                await asking

    run(scenario())


def silent_after(begun: bytes, **limits: float) -> str:
    async def scenario() -> str:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(begun)
            await peer.wait_until_closed()  # which the client's closing ends: else the test would time out here

        async with upstream(script) as up, client(**limits) as c:
            return await failure(c, up)

    async def failure(c: UpstreamClient, up: Upstream) -> str:
        with pytest.raises(UpstreamTimeout) as caught:
            await read_whole(await c.request(up.origin, "POST", "/"))
        while c.pool(up.origin).num_open:
            await asyncio.sleep(0.001)
        return str(caught.value)

    return run(scenario())


def test_silence_before_the_head() -> None:
    assert "0.03 s before its response" in silent_after(b"HTTP/1.1 200", head_secs=0.03)


def test_silence_in_the_body() -> None:
    assert "0.03 s in the middle" in silent_after(STREAM + chunk(b"a"), idle_secs=0.03)


def test_a_body_may_take_long_if_it_is_never_silent_for_long() -> None:
    async def scenario() -> bytes:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(STREAM)
            for _ in range(8):
                await asyncio.sleep(0.02)
                await peer.send(chunk(b"a"))
            await peer.send(b"0\r\n\r\n")

        async with upstream(script) as up, client(idle_secs=0.1, head_secs=0.1) as c:
            return await read_whole(await c.request(up.origin, "POST", "/"))

    assert run(scenario()) == b"a" * 8


def test_a_slow_reader_is_not_the_upstreams_silence() -> None:
    async def scenario() -> int:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(STREAM + chunk(b"x" * 200_000) + b"0\r\n\r\n")

        async with upstream(script) as up, client(idle_secs=0.02, high_water=1_000) as c:
            response = await c.request(up.origin, "POST", "/")
            await asyncio.sleep(0.08)
            return len(await read_whole(response))

    assert run(scenario()) == 200_000
