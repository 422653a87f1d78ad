"""Faults that are planted in the gateway, each found by the swarm: what the world holds against a gateway is no ornament."""

from __future__ import annotations

from typing import Any

import pytest
from world_mutants import FOUND_BY, MUTANTS

from maitred.gateway import proxy
from maitred.scheduler.engines.polling import BackendPoller
from maitred.testing.world.__main__ import play
from maitred.testing.world.behaviours import MODEL, ClientPlan
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.swarm import draw_scenario

pytestmark = pytest.mark.skipif(not str(proxy.__file__).endswith(".py"), reason="compiled classes cannot be patched")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    assert play(draw_scenario(FOUND_BY[name]), stops_at_violation=True).violations


def test_a_model_that_is_not_read_anew_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = BackendPoller._usable_models

    def mutant(self: Any, listed: Any) -> Any:
        found = usable(self, listed)
        if MODEL not in found:
            self.kept = found
        return getattr(self, "kept", found)

    monkeypatch.setattr(BackendPoller, "_usable_models", mutant)
    clients = (ClientPlan(kind="polite", num_requests=30, think_secs=3.0),)
    scenario = Scenario(seed=2, clients=clients, num_engines=1, faults=("other model",), fault_secs=20.0, poll_secs=1.0)
    assert "nobody serves emulated" in play(scenario).violations[0]


@pytest.mark.parametrize("seed", sorted(set(FOUND_BY.values())))
def test_nothing_is_found_where_nothing_is_planted(seed: int) -> None:
    assert play(draw_scenario(seed)).violations == []
