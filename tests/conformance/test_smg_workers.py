"""SMG's recorded scenarios against a gateway of three workers, of which each request comes to another: the verdicts of one."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from smg_conformance.gateway import with_workers
from smg_conformance.runner import run
from smg_conformance.scenario import Unread, read_file

FILE = read_file(Path(__file__).parent.parent / "vectors" / "smg_scenarios.json")
IDS = [msgspec.json.decode(raw, type=Unread).id for raw in FILE.scenarios]
AT_ONCE = 6
"""Each takes four applications."""
pytestmark = pytest.mark.timeout(300)
"""All are played before the first test: on a busy machine that takes its time."""


@pytest.fixture(scope="module")
def results():
    async def play():
        return {result.id: result async for result in run(FILE.scenarios, FILE, AT_ONCE, with_workers(3))}

    return asyncio.run(play())


@pytest.mark.parametrize("scenario", IDS)
def test_three_workers_give_the_verdict_of_one_gateway(results, scenario):
    result = results[scenario]
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
