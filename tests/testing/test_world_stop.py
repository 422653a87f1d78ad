"""The end of a gateway, as clients see it whose first request is on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from maitred.testing.world.behaviours import Client, ClientPlan
from maitred.testing.world.clients import Fate
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.stage import Stage


async def boot(stage: Stage) -> None:
    """Start the engines and the gateway of a stage."""
    for engine in stage.engines:
        engine.boot()
    stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
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
        assert sent.status in (503, None)  # The connection is closed right behind the answer, which may be lost with it.
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    (line,) = (msgspec.json.decode(line) for line in stage.log.lines if b"slow-1" in line)
    assert (line["status"], line["error"]) == (503, "shutting_down")
