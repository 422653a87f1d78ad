"""SMG's recorded scenarios against the real gateway, in virtual time: one test for each."""

from functools import partial
from pathlib import Path

import msgspec
import pytest
from smg_conformance.gateway import in_this_process
from smg_conformance.runner import run
from smg_conformance.scenario import Unread, read_file

import virtual_time

FILE = read_file(Path(__file__).parent.parent / "vectors" / "smg_scenarios.json")
SCENARIOS = {msgspec.json.decode(raw, type=Unread).id: raw for raw in FILE.scenarios}


@pytest.mark.parametrize("name", SCENARIOS)
def test_as_recorded_or_as_wanted(name):
    async def play():
        launch = partial(in_this_process, machine=virtual_time.MACHINE.get())
        return [result async for result in run([SCENARIOS[name]], FILE, launch=launch)]

    (result,) = virtual_time.run(play())
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
