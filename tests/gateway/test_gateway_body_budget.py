"""Bodies are read first: an upload holds no slot, all bodies share a budget, and an invalid body costs no slot."""

from __future__ import annotations

import msgspec
import pytest
from world import Backend, ClientConnection, GatedAnswer, GatewayWorld, run, world

from maitred.gateway.body_budget import BodyBudget, BodyLease
from maitred.wire.exchange import ApiError

BODY = b'{"model":"m","pad":"%s"}' % (b"x" * 78)  # 100 bytes
BUDGET = {"max_body_bytes": 150, "max_parked_body_bytes": 250}


def test_a_lease_takes_what_there_is_and_gives_it_back_once() -> None:
    budget = BodyBudget(10)
    first, second = BodyLease(budget), BodyLease(budget)
    first.take_bytes(4)
    second.take_bytes(6)
    with pytest.raises(ApiError) as caught:
        first.take_bytes(1)
    assert (caught.value.status, caught.value.code) == (503, "body_budget_exhausted")
    second.release()
    second.release()
    first.take_bytes(6)
    first.release()
    assert budget.parked_bytes == 0


async def begin(w: GatewayWorld, body: bytes, promised: int) -> ClientConnection:
    """Send `body`, the beginning of a body of `promised` bytes."""
    connection = await w.connect()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {promised}\r\n\r\n"
    connection.writer.write(head.encode() + body)
    await connection.writer.drain()
    return connection


async def refused(connection: ClientConnection) -> tuple[int, str, str | None]:
    status, headers, body = await connection.read_response()
    return status, msgspec.json.decode(body)["error"]["code"], headers.get("retry-after")


def parked(w: GatewayWorld) -> int:
    return w.state.parked_body_bytes


def test_bodies_that_are_kept_and_those_that_are_being_read_share_one_budget() -> None:
    assert len(BODY) == 100

    async def scenario() -> None:
        async with world(Backend(held := GatedAnswer()), slots=1, **BUDGET) as w:
            flying = await w.start_request(BODY)
            waiting = await begin(w, BODY[:90], promised=100)
            await w.wait_until(lambda: parked(w) == 190)
            assert await refused(await w.start_request(BODY)) == (503, "body_budget_exhausted", "2")
            waiting.writer.write(BODY[90:])
            await w.wait_until(lambda: w.state.waiting == 1)
            assert parked(w) == 200
            assert "maitred_parked_body_bytes 200.0" in (await w.request("/metrics", method="GET"))[2].decode().splitlines()
            held.open.set()
            assert [(await connection.read_response())[0] for connection in (flying, waiting)] == [200, 200]
            await w.wait_until(lambda: parked(w) == 0)
            assert w.gateway.counters.refused_before_admission == {"body_budget_exhausted": 1}

    run(scenario())


def test_whatever_becomes_of_a_request_its_share_is_given_back() -> None:
    async def scenario() -> None:
        async with world(Backend(held := GatedAnswer()), slots=1, **BUDGET) as w:
            flying = await w.start_request(BODY)
            await w.wait_until(lambda: w.state.in_flight == 1)
            queued = await w.start_request(BODY)
            await w.wait_until(lambda: w.state.waiting == 1)
            queued.disconnect()
            await w.wait_until(lambda: parked(w) == 100)
            (await begin(w, BODY[:50], promised=100)).disconnect()
            await w.wait_until(lambda: parked(w) == 100)
            assert (await w.request(body=b"[" * 120))[0] == 400
            assert (await w.request(body={"model": "unknown", "pad": "x" * 80}))[0] == 404
            assert (await w.request(body=b"x" * 151))[0] == 413
            assert parked(w) == 100
            held.open.set()
            await flying.read_response()
            await w.wait_until(lambda: parked(w) == 0)

    run(scenario())


def test_a_slow_upload_holds_no_slot() -> None:
    async def scenario() -> None:
        async with world(slots=1) as w:
            slow = await begin(w, BODY[:1], promised=100)
            await w.wait_until(lambda: parked(w) == 1)
            assert w.state.in_flight == w.state.waiting == 0
            assert (await w.request(body=BODY))[0] == 200
            slow.writer.write(BODY[1:])
            assert (await slow.read_response())[0] == 200

    run(scenario())


def test_an_invalid_body_is_told_so_even_when_there_is_no_slot() -> None:
    async def scenario() -> None:
        backend, admission = Backend(held := GatedAnswer()), {"classes": {"default": {"queue_size": 0}}}
        async with world(backend, slots=1, admission=admission) as w:
            flying = await w.start_request(BODY)
            await w.wait_until(lambda: w.state.in_flight == 1)
            assert (await w.request(body=BODY))[0] == 429
            assert (await w.request(body=b"{"))[0] == 400
            assert w.state.classes["default"].arrived == 2
            held.open.set()
            await flying.read_response()

    run(scenario())
