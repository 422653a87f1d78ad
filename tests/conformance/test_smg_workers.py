"""SMG's recorded scenarios against a gateway of three workers, and against three gateways with two schedulers, of which each
request comes to another, in virtual time: the verdicts of one."""

from pathlib import Path

import msgspec
import pytest
from smg_conformance.gateway import with_schedulers, with_workers
from smg_conformance.runner import run
from smg_conformance.scenario import Unread, read_file

import virtual_time

FILE = read_file(Path(__file__).parent.parent / "vectors" / "smg_scenarios.json")
SCENARIOS = {msgspec.json.decode(raw, type=Unread).id: raw for raw in FILE.scenarios}
LAUNCHERS = {
    "three workers": lambda machine: with_workers(3, machine),
    "three gateways and two schedulers": lambda machine: with_schedulers(3, 2, machine),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_several_processes_give_the_verdict_of_one_gateway(launcher, name):
    async def play():
        launch = LAUNCHERS[launcher](virtual_time.MACHINE.get())
        return [result async for result in run([SCENARIOS[name]], FILE, launch=launch)]

    (result,) = virtual_time.run(play())
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
