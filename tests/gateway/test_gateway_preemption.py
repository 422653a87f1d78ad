"""Preemption over real sockets: what the client of a victim reads, what its backend sees, and which requests are no victims."""

from __future__ import annotations

import asyncio
from itertools import cycle, islice
from typing import Any

import msgspec
import pytest
from world import ANSWER, CHAT, STREAM_HEAD, Backend, BackendRequest, ClientConnection, chunk, run, whole, world

PREEMPTING = {"classes": {"interactive": {"can_preempt": True}}}
RETRYING = {**PREEMPTING, "on_preempt": "retry"}
STREAM = {"model": "m", "stream": True}
BULK, INTERACTIVE = {"x_smg_priority": "bulk"}, {"x_smg_priority": "interactive"}
REFUSED = {
    "error": {
        "message": "request preempted by higher-priority traffic",
        "type": "server_error",
        "param": None,
        "code": "scheduler_preempted",
    }
}


class Engine:
    """An engine that sends `shown` of the response to a bulk request, and keeps it until its connection is closed.

    It answers other requests at once.
    """

    def __init__(self, shown: bytes = b"") -> None:
        self.shown = shown
        self.busy = asyncio.Event()
        self.gone = 0

    async def __call__(self, received: BackendRequest) -> None:
        if b"x-class: bulk" not in received.head:
            await received.send(whole(ANSWER))
            return
        await received.send(self.shown)
        self.busy.set()
        await received.wait_until_disconnected()
        self.gone += 1
        raise ConnectionError

    async def kept(self) -> None:
        """Wait until the engine holds one more bulk request."""
        await self.busy.wait()
        self.busy.clear()


async def ask_bulk(victim: ClientConnection, **headers: str) -> None:
    await victim.send_request(CHAT, STREAM, x_class="bulk", **BULK, **headers)


def check_refusal(status: int, headers: dict[str, str], body: bytes) -> None:
    assert status == 503
    assert headers["retry-after"] == "1"
    assert headers["x-smg-preempted"] == "true"
    assert headers["x-smg-error-code"] == "scheduler_preempted"
    assert headers["content-type"] == "application/json"
    assert msgspec.json.decode(body) == REFUSED


def test_hundreds_of_victims_read_their_503_whole_on_one_connection() -> None:
    """Before, the engine has sent nothing, a head (of a stream or of another response), or a head and a comment."""

    async def scenario() -> None:
        engine = Engine()
        other_head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
        shown = cycle((b"", STREAM_HEAD, STREAM_HEAD + chunk(b": working\n\n"), other_head))
        async with world(Backend(engine), slots=1, admission=PREEMPTING, health_interval_secs=30.0) as w:
            victim, vip = await w.connect(), await w.connect()
            for engine.shown in islice(shown, 200):
                await ask_bulk(victim)
                await engine.kept()
                await vip.send_request(**INTERACTIVE)
                assert (await vip.read_response())[::2] == (200, ANSWER)
                check_refusal(*await victim.read_response())
            await victim.send_request()
            assert (await victim.read_response())[::2] == (200, ANSWER)
            await w.wait_until(lambda: engine.gone == 200)
            bulk = w.state.classes["bulk"]
            assert (bulk.preempted, bulk.preempted_by["interactive"], bulk.arrived) == (200, 200, 200)

    run(scenario())


def test_the_bytes_of_a_503_before_the_connection_is_closed() -> None:
    async def scenario() -> bytes:
        engine = Engine()
        async with world(Backend(engine), slots=1, admission=PREEMPTING) as w:
            victim = await w.connect()
            await ask_bulk(victim, connection="close", x_request_id="v")
            await engine.kept()
            assert (await w.request(**INTERACTIVE))[0] == 200
            return await victim.reader.read()

    head, body = run(scenario()).split(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert msgspec.json.decode(body) == REFUSED
    assert sorted(lines) == [
        b"connection: close",
        b"content-length: %d" % len(body),
        b"content-type: application/json",
        b"retry-after: 1",
        b"x-maitred-queue-ms: 0",
        b"x-request-id: v",
        b"x-smg-error-code: scheduler_preempted",
        b"x-smg-preempted: true",
    ]


@pytest.mark.parametrize("body", [{"model": "m"}, STREAM])
def test_a_request_that_has_shown_data_is_left_alone(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        end = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            if b"x-class: bulk" not in received.head:
                await received.send(whole(ANSWER))
                return
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await end.wait()
            await received.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

        async with world(Backend(respond), slots=1, admission=PREEMPTING) as w:
            bulk = await w.start_request(body, x_class="bulk", **BULK)
            await bulk.read_head()
            assert await bulk.read_chunk() == b"data: 1\n\n"
            vip = await w.start_request(**INTERACTIVE)
            await w.wait_until(lambda: w.state.waiting)
            end.set()
            assert [await bulk.read_chunk(), await bulk.read_chunk()] == [b"data: 2\n\n", b""]
            assert (await vip.read_response())[0] == 200
            assert w.state.classes["bulk"].completed == 1

    run(scenario())


def test_two_preemptors_and_one_victim() -> None:
    async def scenario() -> None:
        engine = Engine()
        async with world(Backend(engine), slots=1, admission=PREEMPTING) as w:
            victim = await w.connect()
            await ask_bulk(victim)
            await engine.kept()
            vips = [await w.start_request(**INTERACTIVE) for _ in range(2)]
            assert [(await vip.read_response())[0] for vip in vips] == [200, 200]
            check_refusal(*await victim.read_response())
            books = w.state.classes
            assert (books["bulk"].preempted, books["interactive"].completed) == (1, 2)
            assert len(w.backends[0].received) == 3

    run(scenario())


def test_the_newest_of_the_lowest_class_goes_first_and_the_last_finds_no_victim() -> None:
    async def scenario() -> None:
        engine = Engine()
        async with world(Backend(engine), slots=3, admission=PREEMPTING) as w:
            names = (("default", "default"), ("bulk", "old"), ("bulk", "new"))
            connections = {}
            for name, who in names:
                connections[who] = await w.start_request(x_smg_priority=name, x_class="bulk", x_request_id=who)
                await engine.kept()
            keep = await w.connect()
            for who in ("new", "old", "default"):
                vip = await w.start_request(x_smg_priority="interactive", x_class="bulk")
                await engine.kept()
                status, headers, _ = await connections[who].read_response()
                assert (status, headers["x-request-id"]) == (503, who)
                keep = vip
            fourth = await w.start_request(**INTERACTIVE)
            await w.wait_until(lambda: w.state.waiting)
            keep.disconnect()
            assert (await fourth.read_response())[0] == 200

    run(scenario())


def test_a_victim_whose_first_backend_died_under_it() -> None:
    """The second backend has the request now, and its connection is closed as the first one's would have been."""

    async def scenario() -> None:
        async def dies(received: BackendRequest) -> None:
            if b"x-class: bulk" not in received.head:
                await answer_both(received)
                return
            await w.wait_until(lambda: second.received)  # Otherwise the other victim may come here as well.
            raise ConnectionError

        async def keeps(received: BackendRequest) -> None:
            await (engine if b"x-class: bulk" in received.head else answer_both)(received)

        async def answer_both(received: BackendRequest) -> None:
            urgent.append(received)
            await w.wait_until(lambda: len(urgent) == 2)  # The slot of the first one would be free for the second one.
            await received.send(whole(ANSWER))

        engine, urgent = Engine(), list[BackendRequest]()
        first, second = Backend(dies), Backend(keeps)
        async with world(first, second, slots=1, admission=PREEMPTING) as w:
            victims = [await w.connect() for _ in range(2)]
            for victim in victims:
                await ask_bulk(victim)
            await w.wait_until(lambda: w.gateway.counters.retries == 1)
            await engine.kept()
            await w.wait_until(lambda: w.state.in_flight == 2)
            vips = [await w.start_request(**INTERACTIVE) for _ in range(2)]
            assert [(await vip.read_response())[0] for vip in vips] == [200, 200]
            for victim in victims:
                check_refusal(*await victim.read_response())

    run(scenario())


def test_a_victim_that_is_tried_again_notices_nothing() -> None:
    async def scenario() -> None:
        started, release = asyncio.Event(), asyncio.Event()
        turns: list[BackendRequest] = []

        async def respond(received: BackendRequest) -> None:
            if b"x-class: bulk" not in received.head:
                await received.send(whole(ANSWER))
                return
            turns.append(received)
            started.set()
            if len(turns) == 1:
                await received.wait_until_disconnected()
                raise ConnectionError
            await release.wait()
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        async with world(Backend(respond), slots=1, admission=RETRYING) as w:
            victim = await w.connect()
            await ask_bulk(victim)
            await started.wait()
            assert (await w.request(**INTERACTIVE))[0] == 200
            await w.wait_until(lambda: len(turns) == 2)
            second = await w.start_request(**INTERACTIVE)  # it is left alone now
            await w.wait_until(lambda: w.state.waiting)
            release.set()
            assert (await victim.read_response())[::2] == (200, b"data: 1\n\n")
            assert (await second.read_response())[0] == 200
            assert turns[0].body == turns[1].body
            bulk = w.state.classes["bulk"]
            assert (bulk.arrived, bulk.completed, bulk.retried, bulk.preempted) == (1, 1, 1, 0)

    run(scenario())


def test_a_victim_that_waits_again_may_leave_or_wait_in_vain() -> None:
    async def scenario() -> None:
        engine, end = Engine(), asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            if b"x-class: bulk" in received.head:
                await engine(received)
            await end.wait()
            await received.send(whole(ANSWER))

        classes = {**PREEMPTING["classes"], "bulk": {"queue_timeout_secs": 0.6}}
        async with world(Backend(respond), slots=2, admission={**RETRYING, "classes": classes}) as w:
            victims = [await w.connect() for _ in range(2)]
            for victim in victims:
                await ask_bulk(victim)
                await engine.kept()
            vips = [await w.start_request(**INTERACTIVE) for _ in range(2)]
            await w.wait_until(lambda: w.state.classes["bulk"].waiting == 2)
            victims[0].disconnect()
            await w.wait_until(lambda: w.state.classes["bulk"].waiting == 1)
            status, headers, _ = await victims[1].read_response()
            assert (status, headers["x-smg-error-code"]) == (408, "scheduler_queue_timeout")
            end.set()
            assert [(await vip.read_response())[0] for vip in vips] == [200, 200]
            bulk = w.state.classes["bulk"]
            assert (bulk.cancelled, bulk.queue_timeout, bulk.retried, bulk.preempted) == (1, 1, 2, 0)
            assert len(w.backends[0].received) == 4

    run(scenario())


@pytest.mark.parametrize("admission", [PREEMPTING, RETRYING])
def test_interactive_requests_pass_a_flood_of_bulk(admission: dict[str, Any]) -> None:
    """Ten interactive requests, one after the other, among 120 bulk requests on four slots. The last finds a queue as well."""

    async def scenario() -> None:
        flow = asyncio.Semaphore(0)

        async def respond(received: BackendRequest) -> None:
            if b"x-class: bulk" in received.head:
                await flow.acquire()
            await received.send(STREAM_HEAD)
            await asyncio.sleep(0.002)  # Until its first data comes, a request may be a victim.
            await received.send(chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        async with world(Backend(respond), slots=4, admission=admission) as w:
            flood = [await w.connect() for _ in range(120)]
            for connection in flood:
                await ask_bulk(connection)
            await w.wait_until(lambda: w.state.classes["bulk"].waiting == 116)
            for _ in range(10):
                assert (await w.request(body=STREAM, **INTERACTIVE))[0] == 200
                assert w.state.classes["bulk"].waiting > 120 - 10 * 8 - 4 - 10
                for _ in range(8):
                    flow.release()
            for _ in range(120):
                flow.release()
            statuses = [(await connection.read_response())[0] for connection in flood]
            await w.wait_until_idle()
            books = w.state.classes
            assert set(statuses) <= ({200} if admission is RETRYING else {200, 503})
            assert statuses.count(503) == books["bulk"].preempted
            assert books["bulk"].completed + books["bulk"].preempted == books["bulk"].arrived == 120
            assert books["interactive"].completed == 10
            assert 1 <= books["bulk"].preempted_by["interactive"] <= 10
            assert books["bulk"].completed + 10 <= len(w.backends[0].received) <= 120 + 10 + books["bulk"].retried

    run(scenario())
