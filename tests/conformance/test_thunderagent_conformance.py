"""ThunderAgent's recorded scenarios against the real gateway, over sockets: one test for each."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from conformance.smg_conformance.gateway import in_this_process
from conformance.smg_conformance.scenario import Unread, read_file
from conformance.thunderagent_conformance.runner import run

VECTORS = Path(__file__).parent.parent / "vectors"
SCENARIOS = [
    *read_file(VECTORS / "thunderagent_scenarios.json").scenarios,
    *read_file(VECTORS / "program_scenarios.json").scenarios,
]
IDS = [msgspec.json.decode(raw, type=Unread).id for raw in SCENARIOS]
AT_ONCE = 30
"""They wait more than they work."""
pytestmark = pytest.mark.timeout(300)
"""All are played before the first test: on a busy machine that takes its time."""


@pytest.fixture(scope="module")
def results():
    async def play():
        return {result.id: result async for result in run(SCENARIOS, AT_ONCE, in_this_process)}

    return asyncio.run(play())


@pytest.mark.parametrize("scenario", IDS)
def test_as_recorded_or_as_wanted(results, scenario):
    result = results[scenario]
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
