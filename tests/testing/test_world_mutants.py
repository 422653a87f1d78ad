"""Faults that are planted in the gateway, each found by the swarm: what the world holds against a gateway is no ornament."""

from __future__ import annotations

import pytest
from world_mutants import FOUND_BY, MUTANTS

from maitred.gateway import proxy
from maitred.testing.world.__main__ import play
from maitred.testing.world.swarm import draw_scenario

pytestmark = pytest.mark.skipif(not str(proxy.__file__).endswith(".py"), reason="compiled classes cannot be patched")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    assert play(draw_scenario(FOUND_BY[name]), stops_at_violation=True).violations


@pytest.mark.parametrize("seed", sorted(set(FOUND_BY.values())))
def test_nothing_is_found_where_nothing_is_planted(seed: int) -> None:
    assert play(draw_scenario(seed)).violations == []
