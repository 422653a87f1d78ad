"""The end of a gateway, as clients see it whose first request is on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from maitred.testing.world.behaviours import Client, ClientPlan
from maitred.testing.world.clients import ClientConnection, Fate, Sent
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.stage import Stage


async def boot(stage: Stage, *, announces_end: bool = True) -> None:
    """Start the engines and the gateway of a stage. Without `announces_end` it closes idle connections at SIGTERM."""
    for engine in stage.engines:
        engine.boot()
    stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
    if not announces_end:
        gateway = msgspec.structs.replace(stage.settings.gateway, shutdown_delay_secs=0.0)
        stage.settings = msgspec.structs.replace(stage.settings, gateway=gateway)
    await stage.process.start()


@pytest.mark.parametrize("sent_bytes", [0, 40], ids=["nothing was sent", "half a head was sent"])
def test_a_connection_that_was_made_before_sigterm_has_its_first_request_answered(sent_bytes: int, tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "late", ClientPlan(kind="polite"), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage)
        connection = await client.connect()
        assert connection is not None
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data[:sent_bytes])
        await asyncio.sleep(0.5)
        stopping = stage.loop.create_task(stage.process.stop())
        await asyncio.sleep(1.0)  # less than `shutdown_delay_secs`
        if connection.is_open:
            connection.transport.write(data[sent_bytes:])
        await client.wait_for(sent)
        assert (sent.fate, sent.status) == (Fate.ANSWERED, 200)
        assert sent.answer is not None
        assert sent.answer.closes
        await stopping
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    assert stage.ledger.violations == []


def test_a_request_of_which_half_a_head_has_come_when_the_port_closes_is_answered(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "dribble", ClientPlan(kind="dribble"), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage, announces_end=False)
        connection = await client.connect()
        assert connection is not None
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data[:40])
        await asyncio.sleep(0.5)
        stopping = stage.loop.create_task(stage.process.stop())
        await asyncio.sleep(1.0)
        connection.transport.write(data[40:])
        await client.wait_for(sent)
        assert (sent.fate, sent.status) == (Fate.ANSWERED, 200)
        await stopping
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    assert stage.ledger.violations == []


def test_a_request_on_its_way_over_a_kept_connection_at_sigterm_is_answered(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "kept", ClientPlan(kind="polite"), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage)
        connection = await client.connect()
        assert connection is not None
        assert (await client.ask(connection, streams=False)).status == 200
        stopping = stage.loop.create_task(stage.process.stop())
        sent = await client.ask(connection, streams=False)  # It leaves at the very instant of the signal.
        assert (sent.fate, sent.status) == (Fate.ANSWERED, 200)
        await stopping
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    assert stage.ledger.violations == []


def test_a_client_that_pipelines_while_a_gateway_ends_loses_no_answer_to_a_reset(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "pipeline", ClientPlan(kind="pipeline"), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage)
        stopping = stage.loop.create_task(stage.process.stop())
        for _ in range(20):
            await ask_twice()
        await stopping
        for engine in stage.engines:
            await engine.close()

    async def ask_twice() -> None:
        connection = await client.connect()
        assert connection is not None
        (first, data), (_, further) = client.next_request(streams=False), client.next_request(streams=False)
        client.send(connection, first, data)
        while connection.is_open and first.answer is None:
            connection.transport.write(further[:1])  # On its way when the answer to the first one is sent.
            further = further[1:]
            await asyncio.sleep(0.0001)
        await client.wait_for(first)
        assert (first.fate, first.status) == (Fate.ANSWERED, 200)

    stage.loop.run_until_complete(play())


def test_what_is_pipelined_behind_an_answer_that_has_begun_is_answered_too(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "pipeline", ClientPlan(kind="pipeline", max_tokens=400), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage, announces_end=False)
        connection = await client.connect()
        assert connection is not None
        (first, data), (second, further) = client.next_request(streams=True), client.next_request(streams=False)
        client.send(connection, first, data)
        while first.answer is None:
            await asyncio.sleep(0.01)
        client.send(connection, second, further)
        stopping = stage.loop.create_task(stage.process.stop())
        await client.wait_for(second)
        answers = (first.answer, second.answer)
        assert [answer is not None and (answer.status, answer.closes) for answer in answers] == [(200, False), (200, True)]
        await stopping
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    assert stage.ledger.violations == []


def test_a_connection_whose_answer_could_not_say_so_is_closed_behind_it(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "stream", ClientPlan(kind="stream", max_tokens=400), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage, announces_end=False)
        connection = await client.connect()
        assert connection is not None
        sent, data = client.next_request(streams=True)
        client.send(connection, sent, data)
        while sent.answer is None:
            await asyncio.sleep(0.01)
        stopping = stage.loop.create_task(stage.process.stop())
        await client.wait_for(sent)
        await asyncio.sleep(0.01)
        assert (sent.fate, connection.is_open) == (Fate.ANSWERED, False)
        await stopping
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    assert stage.ledger.violations == []


def test_a_slow_reader_gets_the_answer_that_its_request_was_cut_off(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "slow", ClientPlan(kind="slow"), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage)
        for engine in stage.engines:
            engine.hangs = True
        for _ in range(8):  # A reset overtakes what is under way half of the time.
            await ask_late()
        await stage.process.stop()
        for connection, sent in asked:
            connection.transport.resume_reading()
            await client.wait_for(sent)
        assert [sent.status for _, sent in asked] == [503] * 8
        for engine in stage.engines:
            await engine.close()

    asked: list[tuple[ClientConnection, Sent]] = []

    async def ask_late() -> None:
        connection = await client.connect()
        assert connection is not None
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data)
        await asyncio.sleep(0.01)
        connection.transport.pause_reading()
        asked.append((connection, sent))

    stage.loop.run_until_complete(play())
    assert stage.ledger.violations == []


def test_a_request_whose_body_does_not_come_before_the_end_is_told_so(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = Client(stage.loop, "slow", ClientPlan(kind="polite"), (GATEWAY, PORT), stage.ledger)

    async def play() -> None:
        await boot(stage)
        connection = await client.connect()
        assert connection is not None
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, data[:-1])
        await asyncio.sleep(2.0)
        await stage.process.stop()
        await client.wait_for(sent)
        assert sent.status == 503
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    (line,) = (msgspec.json.decode(line) for line in stage.log.lines if b"slow-1" in line)
    assert (line["status"], line["error"]) == (503, "shutting_down")
