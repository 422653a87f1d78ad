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
