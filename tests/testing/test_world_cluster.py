"""Gateways and schedulers of their own in a world: what must hold is held, a seed repeats, and planted faults are found."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest
from cluster_mutants import FOUND_BY, FOUND_IN, MUTANTS

from maitred.core.units import SECOND, Micros
from maitred.scheduler.link import gateway_end
from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.cluster.scenario import ClusterScenario
from maitred.testing.world.cluster.simulation import ClusterSimulation, play_cluster
from maitred.testing.world.cluster.swarm import draw_cluster

_CHAT = ClientPlan(kind="polite", num_requests=60, priority="interactive", max_tokens=2, think_secs=0.1)


def test_a_seed_gives_the_same_bytes_and_decisions_again() -> None:
    one, other = (play_cluster(draw_cluster(3)) for _ in range(2))
    assert one.violations == []
    assert one == other
    assert one.fates["answered 200"] > 5


def test_gateways_that_two_leaders_have_not_heard_keep_their_slots() -> None:
    """The first of them learns from the engine what they hold, and loses the store before it hears them."""
    assert play_cluster(draw_cluster(1_300_174)).violations == []


@pytest.mark.parametrize("does_tell", [True, False])
def test_chats_are_granted_again_soon_after_the_leader_has_gone(does_tell: bool, tmp_path: Path) -> None:
    """After a kill, within its lease and half of it; after SIGTERM, as soon as the next one has asked the store."""
    scenario = ClusterScenario(seed=5, clients=(_CHAT,) * 3, num_engines=1, engine_limits=(8,), slots_per_backend=8)
    simulation = ClusterSimulation(scenario, tmp_path)
    stage, waits = simulation.stage, list[Micros]()

    async def end_the_leader() -> None:
        await asyncio.sleep(6)  # by then the leader has learned all
        (leader,) = (each for each in stage.schedulers if each.host is not None and each.host.leadership.epoch)
        if does_tell:
            await leader.stop()
        else:
            leader.kill()
        gone_at, num_grants = stage.loop.micros, stage.watch.num_grants
        while stage.watch.num_grants == num_grants:
            await asyncio.sleep(0.01)
        waits.append(stage.loop.micros - gone_at)
        await leader.start()

    ending = stage.loop.create_task(end_the_leader())
    assert simulation.run().violations == []
    assert ending.done()
    assert waits[0] <= (SECOND if does_tell else 3 * SECOND)


_needs_source = pytest.mark.skipif(not str(gateway_end.__file__).endswith(".py"), reason="compiled classes cannot be patched")


@_needs_source
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    assert any(play_cluster(draw_cluster(seed), stops_at_violation=True).violations for seed in FOUND_BY[name])


@_needs_source
@pytest.mark.parametrize("name", FOUND_IN)
def test_a_planted_fault_fails_a_scenario_of_the_link(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "link")
    module, test = FOUND_IN[name]
    scenario = getattr(importlib.import_module(module), test)
    scenario()
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        scenario()


def test_each_planted_fault_is_found_by_a_seed_or_a_scenario() -> None:
    assert MUTANTS.keys() == FOUND_BY.keys() | FOUND_IN.keys()
