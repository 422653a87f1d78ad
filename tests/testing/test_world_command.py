"""`python -m maitred.testing.world`: what is printed of scenarios that hold, and how one that fails is repeated and shrunk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maitred.gateway import proxy
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.testing.world import __main__ as command
from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.simulation import Simulation
from maitred.testing.world.streams import LinkConfig


def test_scenarios_that_hold_are_summed_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["world", "--seed", "1", "--seeds", "2"])
    assert command.main() == 0
    scenarios, requests, reasons, faults, never = capsys.readouterr().out.splitlines()
    assert scenarios.startswith("2 scenarios, 0 failed; ")
    assert "answered 200 " in requests
    assert reasons.startswith("reasons of admission: ")
    assert "slot_free " in reasons
    assert faults.startswith("faults by the state of a request: ")
    assert never.startswith("never: ")
    assert "; kill/" in never  # Two scenarios do not reach everything.


def test_several_processes_print_what_one_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = list[list[str]]()
    for jobs in ("1", "2"):
        monkeypatch.setattr(sys, "argv", ["world", "--seed", "16", "--events", "2500", "--jobs", jobs])
        assert command.main() == 0
        printed.append(capsys.readouterr().out.splitlines())
    assert printed[0][0].startswith("2 scenarios, 0 failed; ")  # The first one has 845 events, and the second one 2,034.
    assert printed[0][1:] == printed[1][1:]


@pytest.mark.skipif(not str(proxy.__file__).endswith(".py"), reason="compiled classes cannot be patched")
def test_a_scenario_that_fails_is_named_and_shrunk_to_one_that_fails_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    end = RequestObserver.end

    def told_twice(self: RequestObserver, record: object, exchange: object) -> None:
        end(self, record, exchange)  # type: ignore[arg-type]
        end(self, record, exchange)  # type: ignore[arg-type]

    monkeypatch.setattr(RequestObserver, "end", told_twice)
    monkeypatch.setattr(sys, "argv", ["world", "--seed", "14", "--shrink"])
    assert command.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 14: ")
    assert "    again: python -m maitred.testing.world --seed 14 --trace" in lines
    (printed,) = (line.removeprefix("    smaller: ") for line in lines if line.startswith("    smaller: "))
    smaller = eval(printed, {"Scenario": Scenario, "ClientPlan": ClientPlan, "LinkConfig": LinkConfig})
    assert isinstance(smaller, Scenario)
    assert (len(smaller.clients), smaller.faults) == (1, ())
    assert Simulation(smaller, tmp_path).run().violations
