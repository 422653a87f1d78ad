"""The real gateway in a world: scenarios by their seeds, with every kind of fault, and what must hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from maitred.testing.world.behaviours import KINDS, ClientPlan
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.simulation import Outcome, Simulation
from maitred.testing.world.swarm import draw_scenario


def play(scenario: Scenario, folder: Path) -> Outcome:
    return Simulation(scenario, folder).run()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_without_faults_every_request_is_answered(kind: str, tmp_path: Path) -> None:
    clients = (ClientPlan(kind=kind, num_requests=3, max_tokens=20), ClientPlan(kind="stream", num_requests=2))
    outcome = play(Scenario(seed=5, clients=clients), tmp_path)
    assert outcome.violations == []
    assert all(fate.startswith(("answered 200", "abandoned")) for fate in outcome.fates), outcome.fates


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_occurs_and_breaks_nothing(fault: str, tmp_path: Path) -> None:
    clients = tuple(
        ClientPlan(kind=kind, num_requests=8, think_secs=5.0) for kind in ("polite", "stream", "flood", "slow", "pipeline")
    )
    outcome = play(Scenario(seed=2, clients=clients, faults=(fault,), hides_slots=True), tmp_path)
    assert outcome.violations == []
    assert outcome.faults[fault] > 0


def test_a_seed_gives_the_same_bytes_in_another_process_with_another_hash_seed() -> None:
    code = (
        "import tempfile, pathlib, logging\n"
        "from maitred.testing.world.swarm import draw_scenario\n"
        "from maitred.testing.world.simulation import Simulation\n"
        "logging.disable(logging.CRITICAL)\n"
        "for seed in (9, 402):\n"
        "    outcome = Simulation(draw_scenario(seed), pathlib.Path(tempfile.mkdtemp())).run()\n"
        "    print(outcome.wire_digest, outcome.decisions_digest)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == 2


def test_a_fault_that_is_left_out_leaves_the_draws_of_the_clients_as_they_were(tmp_path: Path) -> None:
    scenario = draw_scenario(3)
    assert scenario.faults
    marks = set[tuple[tuple[str, int], ...]]()
    for number, faults in enumerate((scenario.faults, ())):
        folder = tmp_path / str(number)
        folder.mkdir()
        simulation = Simulation(msgspec.structs.replace(scenario, faults=faults), folder)
        simulation.run()
        first = [simulation.stage.ledger.sent[mark] for mark in sorted(simulation.stage.ledger.sent) if mark.endswith("-1")]
        marks.add(tuple((sent.mark, sent.tokens) for sent in first))
    assert len(marks) == 1
