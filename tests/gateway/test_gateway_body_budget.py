"""Bodies are read first: an upload holds no slot, all bodies share a budget, and an invalid body costs no slot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from world import Backend, ClientConnection, GatedAnswer, GatewayWorld, run, world

from maitred.core.units import SECOND
from maitred.gateway.bodies import body_budget
from maitred.gateway.bodies.body_budget import BodyBudget, BodyLease
from maitred.wire.clock import Clock
from maitred.wire.exchange import ApiError

BODY = b'{"model":"m","pad":"%s"}' % (b"x" * 78)  # 100 bytes
BUDGET = {"max_body_bytes": 150, "max_parked_body_bytes": 250}


def test_a_lease_takes_what_there_is_and_gives_it_back_once() -> None:
    budget = BodyBudget(10, Clock(lambda: 0))
    first, second = BodyLease(budget, "a", None), BodyLease(budget, "b", None)
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


class Uploads:
    """A budget with leases of uploads by tenant, and the names of those that were cut."""

    def __init__(self, limit: int) -> None:
        self.now = 0
        """The time, µs."""
        self.budget = BodyBudget(limit, Clock(lambda: self.now * 1_000))
        self.cut: list[str] = []

    def begin(self, name: str, tenant: str, address: str = "a") -> BodyLease:
        lease = BodyLease(self.budget, tenant, (address, 1))
        lease.begin_upload(lambda: self.cut.append(name))
        return lease


def taken(lease: BodyLease, size: int) -> bool:
    with contextlib.suppress(ApiError):
        lease.take_bytes(size)
        return True
    return False


def test_a_tenant_leaves_room_for_others_and_each_of_its_addresses_for_its_others() -> None:
    uploads = Uploads(15_300)
    first = [uploads.begin("", "a") for _ in range(200)]
    assert sum(taken(lease, 100) for lease in first) == 136  # eight times as much as is free
    others = [uploads.begin("", "a", "b") for _ in range(200)]
    assert sum(taken(lease, 100) for lease in others) == 8  # sixteen times
    second = [uploads.begin("", "b") for _ in range(200)]
    assert sum(taken(lease, 100) for lease in second) == 8  # of the 900 that are left
    for lease in (*first, *others, *second):
        lease.release()
    assert (uploads.budget.parked_bytes, uploads.budget.leases, uploads.cut) == (0, {}, [])


def test_the_only_body_of_a_tenant_may_have_all_that_is_left() -> None:
    uploads = Uploads(100)
    assert taken(uploads.begin("", "a"), 60)
    only = uploads.begin("", "b")
    assert taken(only, 30)
    assert taken(only, 10)
    assert not taken(only, 1)


def test_the_slowest_uploads_are_cut_when_another_finds_no_room_and_no_others() -> None:
    uploads = Uploads(100)
    stalled, slow, steady = (uploads.begin(name, name) for name in ("stalled", "slow", "steady"))
    for lease in (stalled, slow, steady):
        assert taken(lease, 20)
    for _ in range(10):
        uploads.now += 5 * SECOND
        assert taken(steady, 2)  # A tenth of what it holds, each 5 s: too slow for 20 s, but never by much.
    assert taken(slow, 2)
    assert uploads.cut == []  # There is room.
    newcomer = uploads.begin("newcomer", "newcomer")
    assert taken(newcomer, 20)
    assert uploads.cut == ["stalled"]
    assert (stalled.held_bytes, uploads.budget.parked_bytes) == (0, 82)


def test_an_upload_that_is_on_time_is_not_cut_and_none_that_is_slower_cuts_another() -> None:
    uploads = Uploads(100)
    slow = uploads.begin("slow", "slow")
    assert taken(slow, 1)
    uploads.now += 30 * SECOND
    fast = uploads.begin("fast", "fast")
    assert taken(fast, 60)
    assert not taken(slow, 50)
    assert uploads.cut == []
    assert not taken(uploads.begin("", "third"), 60)
    assert uploads.cut == ["slow"]


def test_time_in_which_the_process_stood_still_makes_no_upload_slow() -> None:
    uploads, counted = Uploads(100), [0.0]
    server: Any = SimpleNamespace(parked_bytes=0, clock=SimpleNamespace(time=lambda: counted[0]))
    uploads.budget.server = server
    first = uploads.begin("first", "a")
    assert taken(first, 60)
    uploads.now += 62 * SECOND  # The clock of connections goes on from where the process stood still.
    counted[0] += 0.5
    second = uploads.begin("second", "b")
    assert not taken(second, 60)
    assert (uploads.cut, taken(first, 20)) == ([], True)
    counted[0] += 25
    assert taken(uploads.begin("third", "c"), 60)
    assert uploads.cut == ["first"]


def test_whole_bodies_are_not_cut() -> None:
    uploads = Uploads(100)
    whole = uploads.begin("whole", "a")
    assert taken(whole, 80)
    whole.end_upload()
    uploads.now += 1_000 * SECOND
    assert not taken(uploads.begin("", "b"), 30)
    assert uploads.cut == []


def test_a_share_that_is_used_up_cuts_slow_uploads_of_the_same_tenant_alone() -> None:
    uploads = Uploads(1_000)
    assert taken(uploads.begin("other", "b"), 10)
    assert taken(uploads.begin("own", "a"), 700)
    uploads.now += 60 * SECOND
    assert taken(uploads.begin("", "a"), 200)
    assert uploads.cut == ["own"]


def fill(budget: BodyBudget, tenants: Sequence[str]) -> None:
    """Take as much as there is for a body of each of these tenants."""
    for tenant in tenants:
        with contextlib.suppress(ApiError):
            BodyLease(budget, tenant, None).take_bytes(50)


class Parked:
    """A server that has read further requests of its connections."""

    parked_bytes = 10
    clock = SimpleNamespace(time=lambda: 0.0)

    def drop_parked(self) -> None:
        self.parked_bytes = 0


def test_requests_that_wait_behind_others_are_kept_while_memory_is_left() -> None:
    """A tenant that has used up its share does not cost other clients theirs."""
    budget = BodyBudget(1_000, Clock(lambda: 0))
    budget.server = parked = Parked()
    fill(budget, ["a"] * 20)
    assert parked.parked_bytes == 10
    fill(budget, [f"tenant-{number}" for number in range(40)])
    assert parked.parked_bytes == 0


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


def test_an_upload_that_stalls_is_told_so_when_its_memory_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world(**BUDGET) as w:
            stalled = [await begin(w, BODY[:90], promised=100) for _ in range(2)]
            await w.wait_until(lambda: parked(w) == 180)
            budget = w.gateway._budget
            of_server = budget.server.clock
            in_a_minute = SimpleNamespace(time=lambda: of_server.time() + 60)
            monkeypatch.setattr(budget, "server", SimpleNamespace(parked_bytes=0, clock=in_a_minute))
            assert (await w.request(body=BODY))[0] == 200
            assert (await refused(stalled[0]))[:2] == (408, "body_too_slow")
            assert parked(w) == 90
            stalled[1].writer.write(BODY[90:])
            assert (await stalled[1].read_response())[0] == 200

    run(scenario())


def test_requests_that_wait_behind_others_are_dropped_when_their_memory_is_needed() -> None:
    async def scenario() -> None:
        async with world(Backend(held := GatedAnswer()), **BUDGET) as w:
            pipelining = await w.start_request(b'{"model":"m"}')
            await w.wait_until(lambda: w.state.in_flight == 1)
            await pipelining.send_request(body=BODY)
            await w.wait_until(lambda: parked(w) > 150)
            other = await w.start_request(BODY)
            await w.wait_until(lambda: w.state.in_flight == 2)
            held.open.set()
            assert (await other.read_response())[0] == 200
            status, headers, _ = await pipelining.read_response()
            assert (status, headers["connection"]) == (200, "close")

    run(scenario())


def test_who_holds_how_much_is_counted_while_memory_is_short() -> None:
    budget = BodyBudget(100, Clock(lambda: 0))
    first, second, third = BodyLease(budget, "a", ("1", 1)), BodyLease(budget, "a", ("2", 1)), BodyLease(budget, "b", None)
    for lease, size in ((first, 30), (second, 20), (third, 0)):
        lease.take_bytes(size)
    assert budget.by_owner is None
    second.take_bytes(10)
    third.take_bytes(5)
    assert budget.by_owner == {"a": 60, "a\n1": 30, "a\n2": 30, "b": 5, "b\n": 5}
    first.release()
    assert budget.by_owner == {"a": 30, "a\n2": 30, "b": 5, "b\n": 5}
    second.release()
    assert (budget.by_owner, budget.taken_bytes) == (None, 5)
    third.release()
    assert not budget.leases


def test_the_memory_of_a_burst_is_returned_once_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[float]:
        loop, returned, mib = asyncio.get_running_loop(), [], 1024 * 1024
        began = loop.time()
        monkeypatch.setattr(body_budget, "return_freed_memory", lambda: returned.append(loop.time() - began))
        budget = BodyBudget(1024 * mib, Clock(lambda: 0))
        for size, number in ((1, 10), (10, 4), (10, 4)):  # The first ten hold too little to speak of.
            leases = [BodyLease(budget, "a", None) for _ in range(number)]
            for lease in leases:
                lease.take_bytes(size * mib)
            for lease in leases:
                lease.release()
        await asyncio.sleep(15)
        return returned

    assert run(scenario()) == [5.0]
