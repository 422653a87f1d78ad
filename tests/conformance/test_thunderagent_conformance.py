"""ThunderAgent's recorded scenarios against the real gateway, in virtual time: one test for each; and twice more, against a
gateway of three workers and against three gateways with two schedulers, of which each request comes to another."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

import virtual_time
from conformance.smg_conformance.gateway import in_this_process, with_schedulers, with_workers
from conformance.smg_conformance.scenario import Unread, read_file
from conformance.thunderagent_conformance.runner import run

VECTORS = Path(__file__).parent.parent / "vectors"
FILES = [read_file(VECTORS / name) for name in ("thunderagent_scenarios.json", "program_scenarios.json")]
SCENARIOS = {msgspec.json.decode(raw, type=Unread).id: raw for file in FILES for raw in file.scenarios}


def one_gateway():
    return partial(in_this_process, machine=virtual_time.MACHINE.get())


def three_workers():
    return with_workers(3, virtual_time.MACHINE.get())


def three_gateways_and_two_schedulers():
    return with_schedulers(3, 2, virtual_time.MACHINE.get())


@pytest.mark.parametrize("gateway", [one_gateway, three_workers, three_gateways_and_two_schedulers])
@pytest.mark.parametrize("name", SCENARIOS)
def test_as_recorded_or_as_wanted(name, gateway):
    async def play():
        return [result async for result in run([SCENARIOS[name]], launch=gateway())]

    (result,) = virtual_time.run(play())
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
