"""The real gateway in a world: scenarios by their seeds, with every kind of fault, and what must hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

from maitred.testing.world.__main__ import play as play_seed
from maitred.testing.world.behaviours import KINDS, MODEL, OTHER_MODEL, ClientPlan
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.lies import LIES
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.simulation import ScenarioOutcome, Simulation
from maitred.testing.world.swarm import draw_scenario


def play(scenario: Scenario, folder: Path) -> ScenarioOutcome:
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


@pytest.mark.parametrize("lie", sorted(LIES))
def test_an_engine_that_always_lies_breaks_nothing(lie: str, tmp_path: Path) -> None:
    clients = tuple(ClientPlan(kind=kind, num_requests=6) for kind in ("stream", "flood", "program"))
    simulation = Simulation(Scenario(seed=3, clients=clients, has_programs=True, hides_slots="slots" not in lie), tmp_path)
    liar, honest = simulation.stage.engines
    liar.lie = LIES[lie]
    outcome = simulation.run()
    assert outcome.violations == []
    assert liar.num_lies > 0
    assert honest.num_lies == 0


FLOW = {"max_concurrency": 1, "max_gateway_queue_depth": 2}
STRICT = {
    "rate_limit": {"mode": "legacy", "legacy": {"rate_limit_tokens_per_second": 2.0}},
    "rate_limited": {"legacy": {"rate_limit_tokens_per_second": 2.0}},
    "queue_full": {"classes": {"bulk": {"queue_size": 1}}},
    "requests_per_minute": {"limits": [{"requests_per_minute": 5}]},
    "tokens_per_day": {"limits": [{"model": "*", "tokens_per_day": 500}]},
    "token_bucket": {"policy": "token-bucket", "token_bucket_capacity": 500.0, "token_bucket_refill_rate": 50.0},
    "tier_shed": {"policy": "tier-shed", "tier_shed_min_priority": 4},
    "tenant_budget": {"tenant_budgets": {"header:acme": 0.0}, "slo_priorities": {"batch": -1}},
    "saturated": {"mode": "flow-control", "flow_control": FLOW},
    "band_full": {"mode": "flow-control", "flow_control": {**FLOW, "per_band_capacity": 1}},
    "displaced": {"mode": "flow-control", "flow_control": {**FLOW, "queue_shedding": True}},
}
"""Rules of admission by the reason that they add."""


@pytest.mark.parametrize("reason", STRICT)
def test_strict_rules_refuse_requests_and_break_nothing(reason: str, tmp_path: Path) -> None:
    clients = (
        ClientPlan(kind="flood", max_tokens=10, priority="bulk"),
        *(ClientPlan(kind="stream", max_tokens=10, think_secs=0.1, priority="interactive"),) * 3,
    )
    scenario = Scenario(
        seed=5, clients=clients, num_engines=1, engine_limits=(1,), slots_per_backend=1, step_ms=100.0, admission=STRICT[reason]
    )
    outcome = play(scenario, tmp_path)
    assert outcome.violations == []
    assert outcome.reasons[reason] > 0


FAILED: Final = {
    "a request behind a stream that the end of the gateway cuts off": (700_484, {}),
    "lines that a disk holds back until after the end": (701_306, {}),
    "an engine with so much to do that it is ejected": (700_753, {"mode": "legacy", "admission": {}}),
    "a victim that is on its way to an engine which fails it": (701_802, {}),
    "a backend that is drained, and gone by a reload before it is undrained": (810_117, {}),
    "a promotion that is settled by the loss of slots, after the process has stood still": (577, {}),
    "a large request that starves, and smaller ones that pass it": (853, {}),
    "a tenant of whose first short answer more characters per token were learned than any other has": (1592, {}),
    "answers that come as the time for them at a shutdown is over": (900_218, {}),
    "a log of decisions that is torn in its first line": (900_376, {}),
    "an engine that dies behind the last event of a stream, and before its end": (901_842, {}),
    "a newcomer that takes the last slot of its tenant before one that waits in a lower class": (981_289, {}),
    "a poll that a request has asked for, and that a gateway finds under way as it ends": (1_201_912, {}),
}
"""Seeds that have failed once, each with what it needs beside."""


@pytest.mark.parametrize("what", FAILED)
def test_what_failed_once_holds(what: str) -> None:
    seed, further = FAILED[what]
    assert play_seed(msgspec.structs.replace(draw_scenario(seed), **further)).violations == []


def test_an_engine_that_comes_back_with_another_model_serves_its_clients(tmp_path: Path) -> None:
    clients = tuple(ClientPlan(kind="polite", num_requests=20, model=model) for model in (MODEL, OTHER_MODEL))
    scenario = Scenario(seed=2, clients=clients, num_engines=1, faults=("other model",), poll_secs=1.0)
    simulation = Simulation(scenario, tmp_path)
    assert simulation.run().violations == []
    fates = {(sent.model, sent.status) for sent in simulation.stage.ledger.sent.values()}
    assert fates >= {(MODEL, 200), (MODEL, 503), (OTHER_MODEL, 200), (OTHER_MODEL, 404)}


DIGEST_SEEDS = (9, 402)
DIGESTS = f"""
import logging, pathlib, tempfile
from maitred.testing.world.swarm import draw_scenario
from maitred.testing.world.simulation import Simulation
logging.disable(logging.CRITICAL)
for seed in {DIGEST_SEEDS}:
    outcome = Simulation(draw_scenario(seed), pathlib.Path(tempfile.mkdtemp())).run()
    print(outcome.wire_digest, outcome.decisions_digest)
"""
"""A program that prints the digests of two seeds."""


def digests(python: str, hash_seed: str) -> list[str]:
    """Return what another process prints."""
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([python, "-c", DIGESTS], capture_output=True, check=True, text=True, env=env)
    return run.stdout.splitlines()


def find_other_python() -> str | None:
    """Return a Python of another version than this one that has what maitred needs, or None."""
    names = [os.environ.get("MAITRED_OTHER_PYTHON", ""), *(f"python3.{minor}" for minor in range(12, 16))]
    code = f"import sys, maitred.testing.world.simulation; sys.exit(sys.version_info[:2] == {sys.version_info[:2]})"
    for python in filter(None, map(shutil.which, names)):
        if not subprocess.run([python, "-c", code], check=False, capture_output=True).returncode:
            return python
    return None


def test_a_seed_gives_the_same_bytes_in_another_process_with_another_hash_seed() -> None:
    printed = digests(sys.executable, "1")
    assert len(set(printed)) == 2
    outcomes = [play_seed(draw_scenario(seed)) for seed in DIGEST_SEEDS]
    assert [f"{outcome.wire_digest} {outcome.decisions_digest}" for outcome in outcomes] == printed


def test_a_seed_gives_the_same_bytes_in_another_python() -> None:
    other = find_other_python()
    if other is None:
        pytest.skip("no other Python has what maitred needs: MAITRED_OTHER_PYTHON names one")
    assert digests(other, "1") == digests(sys.executable, "1")


def test_a_fault_that_is_left_out_leaves_the_draws_of_the_clients_as_they_were(tmp_path: Path) -> None:
    scenario = draw_scenario(4)
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
