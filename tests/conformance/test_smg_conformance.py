"""SMG's recorded scenarios against the real gateway, over sockets: one test for each."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from smg_conformance.gateway import in_this_process
from smg_conformance.runner import run
from smg_conformance.scenario import Unread, read_file

FILE = read_file(Path(__file__).parent.parent / "vectors" / "smg_scenarios.json")
IDS = [msgspec.json.decode(raw, type=Unread).id for raw in FILE.scenarios]
AT_ONCE = 14
"""They wait more than they work."""
pytestmark = pytest.mark.timeout(300)
"""All are played before the first test: on a busy machine that takes its time."""


@pytest.fixture(scope="module")
def results():
    async def play():
        return {result.id: result async for result in run(FILE.scenarios, FILE, AT_ONCE, in_this_process)}

    return asyncio.run(play())


@pytest.mark.parametrize("scenario", IDS)
def test_as_recorded_or_as_wanted(results, scenario):
    result = results[scenario]
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
