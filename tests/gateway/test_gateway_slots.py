"""Slots: who waits, who is refused, and that each slot comes back exactly once, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from world import ANSWER, STREAM_HEAD, Backend, Turn, Wire, World, admission_config, chunk, run, whole, world

from maitred.admission import replay
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.gateway.recording import AppendFile


class Gate:
    """An act that answers when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, turn: Turn) -> None:
        await self.open.wait()
        await turn.say(whole(ANSWER))


async def fill(w: World, count: int) -> list[Wire]:
    """`count` requests in flight."""
    wires = [await w.asking() for _ in range(count)]
    await w.until(lambda: w.state.in_flight == count)
    return wires


async def code(wire: Wire) -> tuple[int, str, str]:
    status, headers, body = await wire.reply()
    assert msgspec.json.decode(body)["error"]["code"] == headers["x-smg-error-code"]
    return status, headers["x-smg-error-code"], headers["retry-after"]


def test_a_request_waits_for_a_slot_and_takes_the_one_that_comes_free() -> None:
    async def scenario() -> None:
        async with world(Backend(gate := Gate()), slots=1) as w:
            first = (await fill(w, 1))[0]
            second = await w.asking()
            await w.until(lambda: w.state.waiting)
            assert len(w.backends[0].turns) == 1
            gate.open.set()
            assert [(await wire.reply())[0] for wire in (first, second)] == [200, 200]
            assert w.gateway.core.view("m").classes[PriorityClass.DEFAULT].queue_wait.count == 1

    run(scenario())


def test_the_higher_class_goes_first() -> None:
    async def scenario() -> list[bytes]:
        async with world(Backend(gate := Gate()), slots=1) as w:
            wires = await fill(w, 1)
            for waiting, (name, header) in enumerate((("bulk", "Bulk"), ("unlabelled", ""), ("urgent", " \tINTERACTIVE ")), 1):
                wires.append(await w.asking(x_smg_priority=header, x_name=name))
                await w.until(lambda waiting=waiting: w.state.waiting == waiting)
            gate.open.set()
            for wire in wires:
                await wire.reply()
            return [turn.headers[b"x-name"] for turn in w.backends[0].turns[1:]]

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
            await w.ask(**headers)
            assert {label for label, c in w.state.classes.items() if c.admitted} == {name}
            assert sum(w.gateway.counters.unknown_class.values()) == unknown

    run(scenario())


def test_queue_full() -> None:
    async def scenario() -> tuple[int, str, str]:
        async with world(Backend(gate := Gate()), slots=1, admission={"classes": {"default": {"queue_size": 0}}}) as w:
            wires = await fill(w, 1)
            refused = await code(await w.asking())
            gate.open.set()
            assert (await wires[0].reply())[0] == 200
            assert w.state.classes["default"].queue_full == 1
            return refused

    assert run(scenario()) == (429, "scheduler_queue_full", "1")


@pytest.mark.parametrize("status", [408, 503])
def test_queue_timeout(status: int) -> None:
    async def scenario() -> tuple[int, str, str]:
        backend, admission = Backend(gate := Gate()), {"classes": {"default": {"queue_timeout_secs": 0.03}}}
        async with world(backend, slots=1, admission=admission, queue_timeout_status=status) as w:
            wires = await fill(w, 1)
            refused = await code(await w.asking())
            assert w.state.waiting == 0
            gate.open.set()
            assert (await wires[0].reply())[0] == 200
            assert len(backend.turns) == 1
            return refused

    assert run(scenario()) == (status, "scheduler_queue_timeout", "1")


def test_one_queue_timeout_after_the_other() -> None:
    async def scenario() -> None:
        backend, admission = Backend(gate := Gate()), {"classes": {"default": {"queue_timeout_secs": 0.05}}}
        async with world(backend, slots=1, admission=admission, health_interval_secs=30.0) as w:
            wires = await fill(w, 1)
            for _ in range(3):
                wires.append(await w.asking())
                await asyncio.sleep(0.02)
            for wire in wires[1:]:  # nothing else happens meanwhile: it is the timer that wakes the core each time
                assert (await code(wire))[0] == 408
            gate.open.set()
            assert (await wires[0].reply())[0] == 200

    run(scenario())


def test_a_client_that_leaves_the_queue_frees_its_place_at_once() -> None:
    async def scenario() -> None:
        async with world(Backend(gate := Gate()), slots=1, admission={"classes": {"default": {"queue_size": 1}}}) as w:
            first = (await fill(w, 1))[0]
            second = await w.asking()
            await w.until(lambda: w.state.waiting)
            second.leave()
            await w.until(lambda: not w.state.waiting)
            third = await w.asking()
            await w.until(lambda: w.state.waiting)
            gate.open.set()
            assert [(await wire.reply())[0] for wire in (first, third)] == [200, 200]
            assert len(w.backends[0].turns) == 2
            books = w.state.classes["default"]
            assert (books.completed, books.cancelled, books.client_gone) == (2, 1, 0)

    run(scenario())


def test_so_does_one_that_has_asked_for_more_on_the_same_connection() -> None:
    async def scenario() -> None:
        async with world(Backend(gate := Gate()), slots=1) as w:
            first = (await fill(w, 1))[0]
            second = await w.asking()
            await second.ask()
            await w.until(lambda: w.state.waiting)
            second.leave()
            await w.until(lambda: not w.state.waiting)
            gate.open.set()
            assert (await first.reply())[0] == 200
            assert w.state.classes["default"].arrived == 2

    run(scenario())


@pytest.mark.parametrize("shown", [b"", STREAM_HEAD, STREAM_HEAD + chunk(b": ping\n\n"), STREAM_HEAD + chunk(b"data: 1\n\n")])
def test_a_client_that_leaves_aborts_its_request_at_the_backend(shown: bytes) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def act(turn: Turn) -> None:
            await turn.say(shown)
            await turn.until_gone()
            gone.set()

        async with world(Backend(act), slots=1) as w:
            wire = await w.asking({"model": "m", "stream": True})
            await w.until(lambda: w.backends[0].turns)
            await asyncio.sleep(0.01)
            wire.leave()
            await gone.wait()
            await w.idle()
            books = w.state.classes["default"]
            assert (books.client_gone, books.completed, books.failed) == (1, 0, 0)

    run(scenario())


def test_a_slow_client_holds_the_backend_back() -> None:
    """A client that reads nothing of an endless stream: what the gateway takes of it is bounded."""

    async def scenario() -> None:
        sent = 0

        async def flood(turn: Turn) -> None:
            nonlocal sent
            await turn.say(STREAM_HEAD)
            piece = chunk(b"data: " + b"x" * 65_536 + b"\n\n")
            while True:
                await turn.say(piece)
                sent += len(piece)

        async with world(Backend(flood)) as w:
            wire = await w.asking({"model": "m", "stream": True})
            wire.writer.transport.pause_reading()
            before = -1
            while before != sent or not sent:
                before = sent
                await asyncio.sleep(0.1)
            assert sent < 24_000_000  # what four socket buffers hold; a gateway that buffered would take gigabytes
            wire.writer.transport.resume_reading()
            while sent <= before:
                await wire.reader.read(1 << 20)
            wire.leave()
            await w.idle()
            assert w.state.classes["default"].client_gone == 1

    run(scenario())


def test_a_slow_client_gets_everything() -> None:
    async def scenario() -> None:
        events = [b"data: %d %b\n\n" % (number, b"x" * 50_000) for number in range(200)]

        async def act(turn: Turn) -> None:
            await turn.say(STREAM_HEAD)
            for event in events:
                await turn.say(chunk(event))
            await turn.say(b"0\r\n\r\n")

        async with world(Backend(act)) as w:
            wire = await w.asking({"model": "m", "stream": True})
            wire.writer.transport.pause_reading()
            await asyncio.sleep(0.05)
            wire.writer.transport.resume_reading()
            assert (await wire.reply())[2] == b"".join(events)
            await w.idle()
            assert w.state.classes["default"].completed == 1

    run(scenario())


def test_many_clients_that_leave_at_any_time_leak_nothing() -> None:
    async def scenario() -> None:
        async def act(turn: Turn) -> None:
            await turn.say(STREAM_HEAD)
            for _ in range(5):
                await asyncio.sleep(0.002)
                await turn.say(chunk(b"data: x\n\n"))
            await turn.say(b"0\r\n\r\n")

        async def visit(w: World, number: int) -> None:
            wire = await w.asking({"model": "m", "stream": True})
            if number % 3:
                await asyncio.sleep(number % 13 / 500)
                wire.leave()
            else:
                await wire.reply()

        async with world(Backend(act), Backend(act), slots=8) as w:
            await asyncio.gather(*(visit(w, number) for number in range(150)))
            await w.idle()
            books = w.state.classes["default"]
            ended = books.completed + books.client_gone + books.cancelled + books.failed + books.queue_full
            assert ended == 150
            assert books.completed >= 50
            assert books.failed == 0

    run(scenario())


def test_a_request_that_lost_its_slot_before_its_first_byte_is_not_answered_with_data() -> None:
    async def scenario() -> tuple[int, str, str]:
        async with world(Backend(gate := Gate())) as w:
            wire = (await fill(w, 1))[0]
            from maitred.admission import ReleaseReason

            w.gateway._driver.release(0, ReleaseReason.FAILED)
            gate.open.set()
            return await code(wire)

    assert run(scenario()) == (503, "scheduler_preempted", "1")


def test_the_decision_log_replays_to_the_same_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = Backend(gate := Gate())
        config = {"classes": {"default": {"queue_size": 2, "queue_timeout_secs": 0.03}}}
        async with world(backend, slots=1, admission=config, decision_log=str(tmp_path / "log")) as w:
            wires = [await w.asking() for _ in range(5)]
            await w.until(lambda: w.state.classes["default"].rejected == 4)
            gate.open.set()
            for wire in wires:
                await wire.reply()

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    again: list[bytes] = []
    replay(log.splitlines(keepends=True), DecisionLog(again.append))
    assert b"".join(again) == log
    assert log.count(b'"reason":"queue_timeout"') == 2
    assert log.count(b'"reason":"queue_full"') == 2


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_a_log_with_victims_and_another_mode_replays_to_the_same_bytes(tmp_path: Path, on_preempt: str) -> None:
    async def scenario() -> None:
        async def act(turn: Turn) -> None:
            await turn.say(STREAM_HEAD)
            await asyncio.sleep(0.01)
            await turn.say(chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        backend = Backend(act)
        backend.info = {"max_running_requests": 2}
        admission = {"classes": {"interactive": {"can_preempt": True, "reserved_floor": 1}}, "on_preempt": on_preempt}
        async with world(backend, slots=None, admission=admission, decision_log=str(tmp_path / "log")) as w:
            names = ("bulk", "default", "interactive") * 8
            wires = [await w.asking({"model": "m", "stream": True}, x_smg_priority=name) for name in names]
            for wire in wires:
                await wire.reply()
            w.gateway._driver.reconfigure(admission_config(mode="legacy"))
            assert (await w.ask(x_smg_priority="bulk"))[0] == 200

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    again: list[bytes] = []
    replay(log.splitlines(keepends=True), DecisionLog(again.append))
    assert b"".join(again) == log
    assert b'"action":"preempt"' in log
    assert (b'"reason":"to_be_retried"' in log) == (on_preempt == "retry")
    assert b'"input":"reconfigure"' in log


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_decision_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> str:
        async with world(Backend(gate := Gate()), slots=1, decision_log="/dev/full") as w:
            await w.until(lambda: w.state.decision_log_failed)
            wires = [*await fill(w, 1), await w.asking(), await w.asking()]
            await w.until(lambda: w.state.waiting == 2)
            gate.open.set()
            assert [(await wire.reply())[0] for wire in wires] == [200] * 3
            assert w.state.classes["default"].completed == 3
            return (await w.ask("/metrics", method="GET"))[2].decode()

    assert "maitred_decision_log_failed 1.0" in run(scenario()).splitlines()
    assert [record.message for record in caplog.records if "recorded" in record.message] == [
        "decisions are recorded no more: cannot write /dev/full: No space left on device"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_in_the_middle_of_a_decision_raises_nothing() -> None:
    file = AppendFile("/dev/full", where="gateway.decision_log", what="decisions")
    for _ in range(100):
        file.write(b"x" * 999 + b"\n")  # more than its buffer holds
    assert file.failed
    file.close()


def test_decisions_do_not_stay_in_a_buffer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(decision_log=str(tmp_path / "log")) as w:
            await w.ask()
            await w.until(lambda: b'"end":"drained"' in (tmp_path / "log").read_bytes())

    run(scenario())
