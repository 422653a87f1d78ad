"""Each example plug-in keeps the contract of its kind, and runs as its file says, with only the working directory set."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from maitred.cli import main
from maitred.core.errors import ConfigError
from maitred.queueing import SCHEDULERS
from maitred.testing import (
    check_acting_estimator,
    check_admission_policy,
    check_batch_scheduler,
    check_latency_model,
    check_length_predictor,
    check_priority_policy,
    check_queue_policy,
    check_router,
    check_scorer,
    check_trace_format,
)
from maitred.testing.world.simulation import Simulation
from maitred.testing.world.swarm import draw_scenario

FOLDER = Path(__file__).parents[2] / "examples" / "plugins"
KITS: dict[str, Callable[[], None]] = {
    "acting_estimator": lambda: check_acting_estimator("acting_estimator:ByClock(patience_secs=20)"),
    "admission_policy": lambda: check_admission_policy("admission_policy:TenantRate(rate=2, burst=3)"),
    "batch_scheduler": lambda: check_batch_scheduler("batch_scheduler:GuaranteedNoEvictScheduler"),
    "latency_model": lambda: check_latency_model("latency_model:TwoLimits(weights=300)"),
    "length_predictor": lambda: check_length_predictor("length_predictor:MovingAverage(0.3)"),
    "priority_policy": lambda: check_priority_policy("priority_policy:LeastSlack(prefill_rate=900)"),
    "queue_policy": lambda: check_queue_policy("queue_policy:WeightedShortestFirst(interactive=3.5)"),
    "router": lambda: check_router("router:BoundedRendezvous"),
    "shortest_remaining": lambda: check_batch_scheduler("shortest_remaining:ShortestRemaining(max_running=4)"),
    "scorer": lambda: check_scorer("scorer:KvHeadroom"),
    "trace_format": lambda: check_trace_format("trace_format:UsageLog", (FOLDER / "usage_log.jsonl").read_text().splitlines()),
}


@pytest.fixture(autouse=True)
def _in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry of the module path leads there; the working directory does."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry and Path(entry).resolve() != FOLDER])
    for name in KITS:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_there_is_one_of_each_kind() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(KITS)


@pytest.mark.parametrize("name", KITS)
def test_it_keeps_its_contract(name: str) -> None:
    KITS[name]()


@pytest.mark.parametrize("name", KITS)
def test_it_runs_as_its_file_says(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    said = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
    assert said is not None
    command = shlex.split(said.partition("    maitred ")[2].replace("\\\n", " "))
    assert command[0] == "simulate"
    monkeypatch.setattr(sys, "argv", ["maitred", *command, "--summary-only"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    assert "TTFT ms" in out


@pytest.mark.parametrize("seed", [2, 8])
def test_a_router_is_played_in_a_world(seed: int, tmp_path: Path) -> None:
    scenario = replace(draw_scenario(seed), policy="router:BoundedRendezvous")
    assert Simulation(scenario, tmp_path).run().violations == []
    assert "router" in sys.modules


def test_a_broken_promise_is_found() -> None:
    """The kits are no formality: each of these breaks one promise."""
    with pytest.raises(AssertionError, match=r"seed \d+: the order is .* and that of a new queue"):
        check_queue_policy("broken_plugins:ByTheClock")
    with pytest.raises(AssertionError, match="it looks at waiting, and its `signals` say"):
        check_router("broken_plugins:Nosy")
    with pytest.raises(AssertionError, match=r"scores of \[.*\] are not all from 0 to 1"):
        check_scorer("broken_plugins:Boastful")
    with pytest.raises(AssertionError, match="a load may be None, where an instance does not report it: unsupported operand"):
        check_scorer("broken_plugins:Presuming")
    with pytest.raises(AssertionError, match="it looks at the load"):
        check_admission_policy("broken_plugins:Curious")
    with pytest.raises(AssertionError, match=r"a run of .* steps takes"):
        check_latency_model("broken_plugins:Guessing")
    with pytest.raises(AssertionError, match="the same program has two shares"):
        check_acting_estimator("broken_plugins:Impatient")
    with pytest.raises(AssertionError, match="differ at"):
        check_priority_policy("broken_plugins:Fickle")
    with pytest.raises(AssertionError, match="asking changes what is expected"):
        check_length_predictor("broken_plugins:Forgetful")
    with pytest.raises(AssertionError, match=r"it cannot read its own rows: .* arrived before"):
        check_trace_format("broken_plugins:Backwards", ["row", "row"])
    with pytest.raises(AssertionError, match="it takes 'nonsense' for a row"):
        check_trace_format("broken_plugins:Careless", ["row"])


def test_a_mistake_in_a_plug_in_is_one_line() -> None:
    for spec, complaint in [
        ("queue_policy:WeightedShortestFirst(bulk=0)", "weights must be above 0"),
        ("queue_policy:WeightedLongestFirst", "has no 'WeightedLongestFirst' .did you mean 'WeightedShortestFirst'"),
        ("scorer:KvHeadroom", "is no scheduler"),
    ]:
        with pytest.raises(ConfigError, match=complaint) as error:
            SCHEDULERS.create(spec)
        assert "\n" not in str(error.value)
