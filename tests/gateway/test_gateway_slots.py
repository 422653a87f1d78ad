"""Slots: which requests wait, which are rejected, and that each slot is freed exactly once, however a request ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from world import (
    STREAM_HEAD,
    Backend,
    BackendRequest,
    ClientConnection,
    GatedAnswer,
    GatewayWorld,
    admission_config,
    apart,
    chunk,
    run,
    world,
)

from maitred.core.request import PriorityClass
from maitred.files.append_file import AppendFile
from maitred.files.line_file import LineFile
from maitred.testing.world.invariants import check_replay


async def fill(w: GatewayWorld, count: int) -> list[ClientConnection]:
    """Start `count` requests, and wait until they are in flight."""
    connections = [await w.start_request() for _ in range(count)]
    await w.wait_until(lambda: w.state.in_flight == count)
    return connections


async def code(connection: ClientConnection) -> tuple[int, str, str]:
    status, headers, body = await connection.read_response()
    assert msgspec.json.decode(body)["error"]["code"] == headers["x-smg-error-code"]
    return status, headers["x-smg-error-code"], headers["retry-after"]


def test_a_request_waits_for_a_slot_and_takes_the_one_that_comes_free() -> None:
    async def scenario() -> None:
        async with world(Backend(gate := GatedAnswer()), slots=1) as w:
            first = (await fill(w, 1))[0]
            second = await w.start_request()
            await w.wait_until(lambda: w.state.waiting)
            assert len(w.backends[0].received) == 1
            gate.open.set()
            assert [(await connection.read_response())[0] for connection in (first, second)] == [200, 200]
            assert w.gateway.core.view("m").classes[PriorityClass.DEFAULT].queue_wait.count == 1

    run(scenario())


def test_the_higher_class_goes_first() -> None:
    async def scenario() -> list[bytes]:
        async with world(Backend(gate := GatedAnswer()), slots=1) as w:
            connections = await fill(w, 1)
            for waiting, (name, header) in enumerate((("bulk", "Bulk"), ("unlabelled", ""), ("urgent", " \tINTERACTIVE ")), 1):
                connections.append(await w.start_request(x_smg_priority=header, x_name=name))
                await w.wait_until(lambda waiting=waiting: w.state.waiting == waiting)
            gate.open.set()
            for connection in connections:
                await connection.read_response()
            return [received.headers[b"x-name"] for received in w.backends[0].received[1:]]

    assert run(scenario()) == [b"urgent", b"unlabelled", b"bulk"]


@pytest.mark.parametrize(
    ("headers", "name", "unknown"),
    [
        ({}, "default", 0),
        ({"x_smg_priority": "system"}, "system", 0),
        ({"x_maitred_priority": "bulk"}, "bulk", 0),
        ({"X-SMG-Priority": "\tBuLk "}, "bulk", 0),
        ({"x_smg_priority": "urgent"}, "default", 1),
        ({"x_smg_priority": "  "}, "default", 0),
        ({"x_smg_priority": "bulk", "x_maitred_priority": "system"}, "bulk", 0),
    ],
)
def test_classes(headers: dict[str, str], name: str, unknown: int) -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.request(**headers)
            assert {label for label, c in w.state.classes.items() if c.admitted} == {name}
            assert sum(w.gateway.counters.unknown_class.values()) == unknown

    run(scenario())


def test_queue_full() -> None:
    async def scenario() -> tuple[int, str, str]:
        async with world(Backend(gate := GatedAnswer()), slots=1, admission={"classes": {"default": {"queue_size": 0}}}) as w:
            connections = await fill(w, 1)
            refused = await code(await w.start_request())
            gate.open.set()
            assert (await connections[0].read_response())[0] == 200
            assert w.state.classes["default"].queue_full == 1
            return refused

    assert run(scenario()) == (429, "scheduler_queue_full", "1")


@pytest.mark.parametrize("status", [408, 503])
def test_queue_timeout(status: int) -> None:
    async def scenario() -> tuple[int, str, str]:
        backend, admission = Backend(gate := GatedAnswer()), {"classes": {"default": {"queue_timeout_secs": 0.03}}}
        async with world(backend, slots=1, admission=admission, queue_timeout_status=status) as w:
            connections = await fill(w, 1)
            refused, headers, _ = await (await w.start_request()).read_response()
            assert w.state.waiting == 0
            gate.open.set()
            assert (await connections[0].read_response())[0] == 200
            assert len(backend.received) == 1
            return refused, headers["x-smg-error-code"], headers["x-should-retry"]

    assert run(scenario()) == (status, "scheduler_queue_timeout", "false")


def test_one_queue_timeout_after_the_other() -> None:
    async def scenario() -> None:
        backend, admission = Backend(gate := GatedAnswer()), {"classes": {"default": {"queue_timeout_secs": 0.05}}}
        async with world(backend, slots=1, admission=admission, health_interval_secs=30.0) as w:
            connections = await fill(w, 1)
            for _ in range(3):
                connections.append(await w.start_request())
                await asyncio.sleep(0.02)  # so that each has a deadline of its own
            for connection in connections[1:]:  # nothing else happens meanwhile: it is the timer that wakes the core each time
                assert (await code(connection))[0] == 408
            gate.open.set()
            assert (await connections[0].read_response())[0] == 200

    run(scenario())


def test_a_client_that_leaves_the_queue_frees_its_place_at_once() -> None:
    async def scenario() -> None:
        async with world(Backend(gate := GatedAnswer()), slots=1, admission={"classes": {"default": {"queue_size": 1}}}) as w:
            first = (await fill(w, 1))[0]
            second = await w.start_request()
            await w.wait_until(lambda: w.state.waiting)
            second.disconnect()
            await w.wait_until(lambda: not w.state.waiting)
            third = await w.start_request()
            await w.wait_until(lambda: w.state.waiting)
            gate.open.set()
            assert [(await connection.read_response())[0] for connection in (first, third)] == [200, 200]
            assert len(w.backends[0].received) == 2
            books = w.state.classes["default"]
            assert (books.completed, books.cancelled, books.client_gone) == (2, 1, 0)

    run(scenario())


def test_so_does_one_that_has_asked_for_more_on_the_same_connection() -> None:
    async def scenario() -> None:
        async with world(Backend(gate := GatedAnswer()), slots=1) as w:
            first = (await fill(w, 1))[0]
            second = await w.start_request()
            await second.send_request()
            await w.wait_until(lambda: w.state.waiting)
            second.disconnect()
            await w.wait_until(lambda: not w.state.waiting)
            gate.open.set()
            assert (await first.read_response())[0] == 200
            assert w.state.classes["default"].arrived == 2

    run(scenario())


@pytest.mark.parametrize("shown", [b"", STREAM_HEAD, STREAM_HEAD + chunk(b": ping\n\n"), STREAM_HEAD + chunk(b"data: 1\n\n")])
def test_a_client_that_leaves_aborts_its_request_at_the_backend(shown: bytes) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await received.send(shown)
            await received.wait_until_disconnected()
            gone.set()

        async with world(Backend(respond), slots=1) as w:
            connection = await w.start_request({"model": "m", "stream": True})
            await w.wait_until(lambda: w.backends[0].received)
            await apart()
            connection.disconnect()
            await gone.wait()
            await w.wait_until_idle()
            books = w.state.classes["default"]
            assert (books.client_gone, books.completed, books.failed) == (1, 0, 0)

    run(scenario())


def test_a_slow_client_holds_the_backend_back() -> None:
    """A client reads nothing of an endless stream: the gateway reads a bounded part of it."""

    async def scenario() -> None:
        sent = 0

        async def flood(received: BackendRequest) -> None:
            nonlocal sent
            await received.send(STREAM_HEAD)
            piece = chunk(b"data: " + b"x" * 65_536 + b"\n\n")
            while True:
                await received.send(piece)
                sent += len(piece)

        async with world(Backend(flood)) as w:
            connection = await w.start_request({"model": "m", "stream": True})
            connection.writer.transport.pause_reading()
            before = -1
            while before != sent or not sent:
                before = sent
                await asyncio.sleep(0.1)  # Only time tells that no more is taken.
            assert sent < 24_000_000  # what four socket buffers hold; a gateway that buffered would take gigabytes
            connection.writer.transport.resume_reading()
            while sent <= before:
                await connection.reader.read(1 << 20)
            connection.disconnect()
            await w.wait_until_idle()
            assert w.state.classes["default"].client_gone == 1

    run(scenario())


def test_a_slow_client_gets_everything() -> None:
    async def scenario() -> None:
        events = [b"data: %d %b\n\n" % (number, b"x" * 50_000) for number in range(200)] + [b"data: [DONE]\n\n"]

        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            for event in events:
                await received.send(chunk(event))
            await received.send(b"0\r\n\r\n")

        async with world(Backend(respond)) as w:
            connection = await w.start_request({"model": "m", "stream": True})
            connection.writer.transport.pause_reading()
            await asyncio.sleep(0.05)  # the client is slow
            connection.writer.transport.resume_reading()
            assert (await connection.read_response())[2] == b"".join(events)
            await w.wait_until_idle()
            assert w.state.classes["default"].completed == 1

    run(scenario())


def test_many_clients_that_leave_at_any_time_leak_nothing() -> None:
    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            for _ in range(5):
                await asyncio.sleep(0.002)  # the time of a token
                await received.send(chunk(b"data: x\n\n"))
            await received.send(b"0\r\n\r\n")

        async def visit(w: GatewayWorld, number: int) -> None:
            connection = await w.start_request({"model": "m", "stream": True})
            if number % 3:
                await asyncio.sleep(number % 13 / 500)  # each leaves at another instant
                connection.disconnect()
            else:
                await connection.read_response()

        async with world(Backend(respond), Backend(respond), slots=8) as w:
            await asyncio.gather(*(visit(w, number) for number in range(150)))
            await w.wait_until_idle()
            books = w.state.classes["default"]
            ended = books.completed + books.client_gone + books.cancelled + books.failed + books.queue_full
            assert ended == 150
            assert books.completed >= 50
            assert books.failed == 0

    run(scenario())


def test_a_request_that_lost_its_slot_before_its_first_byte_is_not_answered_with_data() -> None:
    async def scenario() -> tuple[int, str, str]:
        async with world(Backend(gate := GatedAnswer())) as w:
            connection = (await fill(w, 1))[0]
            from maitred.admission import ReleaseReason

            w.gateway.scheduler.admission.release(0, ReleaseReason.FAILED)
            gate.open.set()
            return await code(connection)

    assert run(scenario()) == (503, "scheduler_preempted", "1")


def test_the_decision_log_replays_to_the_same_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = Backend(gate := GatedAnswer())
        config = {"classes": {"default": {"queue_size": 2, "queue_timeout_secs": 0.5}}}
        async with world(backend, slots=1, admission=config, decision_log=str(tmp_path / "log")) as w:
            connections = [await w.start_request() for _ in range(5)]
            await w.wait_until(lambda: w.state.classes["default"].rejected == 4)
            gate.open.set()
            for connection in connections:
                await connection.read_response()

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    assert list(check_replay(log.splitlines(keepends=True), may_lack_lines=False)) == []
    assert log.count(b'"reason":"queue_timeout"') == 2
    assert log.count(b'"reason":"queue_full"') == 2


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_a_log_with_victims_and_another_mode_replays_to_the_same_bytes(tmp_path: Path, on_preempt: str) -> None:
    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            await asyncio.sleep(0.01)  # Until its first data comes, a request may be a victim.
            await received.send(chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        backend = Backend(respond)
        backend.info = {"max_running_requests": 2}
        admission = {"classes": {"interactive": {"can_preempt": True, "reserved_floor": 1}}, "on_preempt": on_preempt}
        async with world(backend, slots=None, admission=admission, decision_log=str(tmp_path / "log")) as w:
            names = ("bulk", "default", "interactive") * 8
            connections = [await w.start_request({"model": "m", "stream": True}, x_smg_priority=name) for name in names]
            for connection in connections:
                await connection.read_response()
            w.gateway.scheduler.admission.reconfigure(admission_config(mode="legacy"))
            assert (await w.request(x_smg_priority="bulk"))[0] == 200

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    assert list(check_replay(log.splitlines(keepends=True), may_lack_lines=False)) == []
    assert b'"action":"preempt"' in log
    assert (b'"reason":"to_be_retried"' in log) == (on_preempt == "retry")
    assert b'"input":"reconfigure"' in log


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_stops_the_decision_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> str:
        async with world(Backend(gate := GatedAnswer()), slots=1, decision_log="/dev/full") as w:
            await w.wait_until(lambda: w.state.decision_log_failed)
            connections = [*await fill(w, 1), await w.start_request(), await w.start_request()]
            await w.wait_until(lambda: w.state.waiting == 2)
            gate.open.set()
            assert [(await connection.read_response())[0] for connection in connections] == [200] * 3
            assert w.state.classes["default"].completed == 3
            return (await w.request("/metrics", method="GET"))[2].decode()

    assert "maitred_decision_log_failed 1.0" in run(scenario()).splitlines()
    assert [record.message for record in caplog.records if record.message.startswith("decisions")] == [
        "decisions in /dev/full cannot be written: No space left on device",
        *(record.message for record in caplog.records if "lost at the end" in record.message),
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_in_the_middle_of_a_decision_raises_nothing() -> None:
    async def scenario() -> None:
        file = AppendFile(LineFile(Path("/dev/full"), where="gateway.decision_log"), "decisions")
        file.start()
        for _ in range(100):
            file.write(b"x" * 999 + b"\n")
        await file.close()
        assert file.failed
        assert file.num_dropped == 100

    run(scenario())


def test_decisions_do_not_stay_in_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(decision_log=str(tmp_path / "log")) as w:
            await w.request()
            await w.wait_until(lambda: b'"end":"drained"' in (tmp_path / "log").read_bytes())

    run(scenario())
