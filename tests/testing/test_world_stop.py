"""The end of a gateway, as clients see it whose first request is on its way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from maitred.testing.world.behaviours import ClientPlan, SimulatedClient
from maitred.testing.world.clients import ClientConnection, Fate, Sent
from maitred.testing.world.invariants import check_ended
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.stage import Stage

REFUSED: Final = "SIGHUP changes nothing: this gateway is shutting down"


class Scene:
    """A gateway between its engines and one client, which is told to stop."""

    def __init__(self, folder: Path, plan: ClientPlan) -> None:
        self.stage = Stage(Scenario(seed=1, clients=()), folder)
        self.client = SimulatedClient(self.stage.loop, plan.kind, plan, (GATEWAY, PORT), self.stage.ledger)

    def play(self, scenario: Coroutine[Any, Any, None], *, announces_end: bool = True) -> None:
        """Start all, play `scenario`, and end the engines. Without `announces_end` idle connections are closed at SIGTERM."""
        self.stage.loop.run_until_complete(self._play(scenario, announces_end))

    async def _play(self, scenario: Coroutine[Any, Any, None], announces_end: bool) -> None:
        stage = self.stage
        for engine in stage.engines:
            engine.boot()
        stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        if not announces_end:
            gateway = msgspec.structs.replace(stage.settings.gateway, settle_secs=0.0)
            stage.settings = msgspec.structs.replace(stage.settings, gateway=gateway)
        await stage.process.start()
        await scenario
        for engine in stage.engines:
            await engine.close()

    async def connect(self) -> ClientConnection:
        """Return a connection of the client."""
        connection = await self.client.connect()
        assert connection is not None
        return connection

    def stop(self) -> asyncio.Task[None]:
        """Tell the gateway to stop."""
        return self.stage.loop.create_task(self.stage.process.stop())


@pytest.mark.parametrize("sent_bytes", [0, 40], ids=["nothing was sent", "half a head was sent"])
def test_a_connection_that_was_made_before_sigterm_has_its_first_request_answered(sent_bytes: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="polite"))
    client = scene.client

    async def play() -> None:
        connection = await scene.connect()
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data[:sent_bytes])
        await asyncio.sleep(0.5)
        stopping = scene.stop()
        await asyncio.sleep(1.0)  # less than `settle_secs`
        if connection.is_open:
            connection.transport.write(data[sent_bytes:])
        await client.wait_for(sent)
        assert (sent.fate, sent.status) == (Fate.ANSWERED, 200)
        assert sent.answer is not None
        assert sent.answer.closes
        await stopping

    scene.play(play())
    assert scene.stage.ledger.violations == []


def test_a_request_of_which_half_a_head_has_come_when_the_port_closes_is_answered(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="dribble"))
    client = scene.client

    async def play() -> None:
        connection = await scene.connect()
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data[:40])
        await asyncio.sleep(0.5)
        stopping = scene.stop()
        await asyncio.sleep(1.0)
        connection.transport.write(data[40:])
        await client.wait_for(sent)
        assert (sent.fate, sent.status) == (Fate.ANSWERED, 200)
        await stopping

    scene.play(play(), announces_end=False)
    assert scene.stage.ledger.violations == []


def test_a_request_on_its_way_over_a_kept_connection_at_sigterm_is_answered(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="polite"))
    client = scene.client

    async def play() -> None:
        connection = await scene.connect()
        assert (await client.ask(connection, streams=False)).status == 200
        stopping = scene.stop()
        sent = await client.ask(connection, streams=False)  # It leaves at the very instant of the signal.
        assert (sent.fate, sent.status) == (Fate.ANSWERED, 200)
        await stopping

    scene.play(play())
    assert scene.stage.ledger.violations == []


def test_a_client_that_pipelines_while_a_gateway_ends_loses_no_answer_to_a_reset(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="pipeline"))
    client = scene.client

    async def play() -> None:
        stopping = scene.stop()
        for _ in range(20):
            await ask_twice()
        await stopping

    async def ask_twice() -> None:
        connection = await scene.connect()
        (first, data), (_, further) = client.next_request(streams=False), client.next_request(streams=False)
        client.send(connection, first, data)
        while connection.is_open and first.answer is None:
            connection.transport.write(further[:1])  # On its way when the answer to the first one is sent.
            further = further[1:]
            await asyncio.sleep(0.0001)
        await client.wait_for(first)
        assert (first.fate, first.status) == (Fate.ANSWERED, 200)

    scene.play(play())


def test_what_is_pipelined_behind_an_answer_that_has_begun_is_answered_too(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="pipeline", max_tokens=400))
    client = scene.client

    async def play() -> None:
        connection = await scene.connect()
        (first, data), (second, further) = client.next_request(streams=True), client.next_request(streams=False)
        client.send(connection, first, data)
        while first.answer is None:
            await asyncio.sleep(0.01)
        client.send(connection, second, further)
        stopping = scene.stop()
        await client.wait_for(second)
        answers = (first.answer, second.answer)
        assert [answer is not None and (answer.status, answer.closes) for answer in answers] == [(200, False), (200, True)]
        await stopping

    scene.play(play(), announces_end=False)
    assert scene.stage.ledger.violations == []


def test_a_connection_whose_answer_could_not_say_so_is_closed_behind_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="stream", max_tokens=400))
    client = scene.client

    async def play() -> None:
        connection = await scene.connect()
        sent, data = client.next_request(streams=True)
        client.send(connection, sent, data)
        while sent.answer is None:
            await asyncio.sleep(0.01)
        stopping = scene.stop()
        await client.wait_for(sent)
        await asyncio.sleep(0.01)
        assert (sent.fate, connection.is_open) == (Fate.ANSWERED, False)
        await stopping

    scene.play(play(), announces_end=False)
    assert scene.stage.ledger.violations == []


def test_a_slow_reader_gets_the_answer_that_its_request_was_cut_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="slow"))
    client = scene.client

    async def play() -> None:
        for engine in scene.stage.engines:
            engine.hangs = True
        for _ in range(8):  # A reset overtakes what is under way half of the time.
            await ask_late()
        await scene.stop()
        for connection, sent in asked:
            connection.transport.resume_reading()
            await client.wait_for(sent)
        assert [sent.status for _, sent in asked] == [503] * 8

    asked: list[tuple[ClientConnection, Sent]] = []

    async def ask_late() -> None:
        connection = await scene.connect()
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data)
        await asyncio.sleep(0.01)
        connection.transport.pause_reading()
        asked.append((connection, sent))

    scene.play(play())
    assert scene.stage.ledger.violations == []


def test_a_request_whose_body_does_not_come_before_the_end_is_told_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="polite"))
    client = scene.client

    async def play() -> None:
        connection = await scene.connect()
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data[:-1])
        await asyncio.sleep(2.0)
        await scene.stop()
        await client.wait_for(sent)
        assert sent.status == 503

    scene.play(play())
    (line,) = (msgspec.json.decode(line) for line in scene.stage.log.lines if b"polite-1" in line)
    assert (line["status"], line["error"]) == (503, "shutting_down")


def test_a_reload_that_waits_for_a_disk_ends_with_its_gateway(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="polite"))
    process, disk = scene.stage.process, scene.stage.machine.disk
    process.on_ended = lambda: scene.stage.ledger.violations.extend(check_ended(scene.stage))

    async def play() -> None:
        disk.slow_secs = 60.0
        process.reload()
        await asyncio.sleep(0.1)
        disk.heal()  # What was begun before takes its time all the same.
        await scene.stop()

    scene.play(play())
    assert scene.stage.ledger.violations == []


def test_a_sighup_while_a_gateway_closes_its_files_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(tmp_path, ClientPlan(kind="polite"))
    stage = scene.stage

    async def play() -> None:
        connection = await scene.connect()
        stage.machine.disk.is_hung = True
        await scene.client.ask(connection, streams=False)
        stopping = scene.stop()
        await asyncio.sleep(1.0)
        reloads = stage.process.gateway.counters.reloads
        assert not stopping.done()
        assert REFUSED not in caplog.messages
        stage.loop.send_signal(signal.SIGHUP)
        await stopping
        assert not reloads

    scene.play(play(), announces_end=False)
    assert caplog.messages.count(REFUSED) == 1
