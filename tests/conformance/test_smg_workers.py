"""SMG's recorded scenarios against a gateway of three workers, and against three gateways with two schedulers, of which each
request comes to another: the verdicts of one."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from smg_conformance.gateway import with_schedulers, with_workers
from smg_conformance.runner import run
from smg_conformance.scenario import Unread, read_file

FILE = read_file(Path(__file__).parent.parent / "vectors" / "smg_scenarios.json")
IDS = [msgspec.json.decode(raw, type=Unread).id for raw in FILE.scenarios]
AT_ONCE = 6
"""Each takes four applications."""
pytestmark = pytest.mark.timeout(300)
"""All are played before the first test: on a busy machine that takes its time."""


LAUNCHERS = {"three workers": with_workers(3), "three gateways and two schedulers": with_schedulers(3, 2)}


@pytest.fixture(scope="module", params=LAUNCHERS)
def results(request):
    async def play():
        return {result.id: result async for result in run(FILE.scenarios, FILE, AT_ONCE, LAUNCHERS[request.param])}

    return asyncio.run(play())


@pytest.mark.parametrize("scenario", IDS)
def test_several_processes_give_the_verdict_of_one_gateway(results, scenario):
    result = results[scenario]
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
