"""What a replay foretells, held against truth: gateways in virtual time, before emulated engines.

The gateway is recorded under one configuration; then the same clients come under another one, and see what was foretold. The
machines of a world are idle, so what is left is the error of the replay itself. `bench/what_if.py` does the same with
processes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from maitred.config import Config
from maitred.study.what_if.figures import figures
from maitred.study.what_if.recorded import Recorded, read_recorded
from maitred.study.what_if.world import ReplayWorld
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.stage import Stage
from maitred.workload import Job

sys.path.append(str(Path(__file__).parents[2] / "testing"))
from test_world_as_simulated import WIRE, make_jobs, send

NAMES = [
    f"{group}{name}_{which}_ms"
    for group in ("", "interactive.", "bulk.")
    for name in ("ttft", "e2e")
    for which in ("p50", "p90")
]


def scenario_of(slots: int, reserved_floor: int, queue_secs: float) -> Scenario:
    return Scenario(
        seed=1,
        clients=(),
        num_engines=2,
        engine_limits=(4, 4),
        step_ms=10.0,
        link=WIRE,
        slots_per_backend=slots,
        reserved_floor=reserved_floor,
        queue_secs=queue_secs,
    )


def recorded_live(scenario: Scenario, jobs: list[Job], folder: Path) -> Recorded:
    folder.mkdir()
    stage, record = Stage(scenario, folder), folder / "record.csv"

    async def play() -> None:
        for engine in stage.engines:
            engine.boot()
        settings = scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        stage.settings = replace(settings, gateway=replace(settings.gateway, record=str(record)))
        await stage.process.start()
        began_at = stage.loop.micros + 5_000_000
        await asyncio.gather(*(send(stage, job, began_at) for job in jobs))
        await stage.process.stop()
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    return read_recorded([stage.decision_log], [record])


def test_what_is_foretold_of_other_rules_is_what_the_same_clients_see_live(tmp_path: Path) -> None:
    jobs = make_jobs(3, 50_000, count=300)
    now, other = scenario_of(4, 0, 30.0), scenario_of(3, 2, 3.0)
    world = ReplayWorld.calibrated(recorded_live(now, jobs, tmp_path / "now"))
    live = recorded_live(other, jobs, tmp_path / "other")
    assert len(live.requests) == len(world.recorded.requests) == 300
    settings = other.settings(["http://a", "http://b"], "")
    config = Config(gateway=settings.gateway, admission=settings.admission, routing=settings.routing)
    foretold = figures(world.replay(world.candidate(config)), world, NAMES)
    seen = figures(ReplayWorld(live, world.engines).truth, ReplayWorld(live, world.engines), NAMES)
    today = figures(world.truth, world, NAMES)
    for name in NAMES:
        assert foretold[name] == pytest.approx(seen[name], rel=0.05), name
    assert (seen["bulk.ttft_p90_ms"] or 0) > 1.2 * (today["bulk.ttft_p90_ms"] or 0)
