"""Memory returns to its start: what a gateway has for a request goes with it, however it ends."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path

import pytest

from maitred.testing.world import chaos
from maitred.testing.world.behaviours import KINDS, ClientPlan, SimulatedClient
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.simulation import IDLE_SECS
from maitred.testing.world.stage import Stage

NUM_WAVES = 3
MOST_MORE = 8
"""What may be kept more after a wave of a hundred requests: configurations that reloads have left to heads that are known."""
OURS = ("maitred.admission", "maitred.gateway", "maitred.scheduler", "maitred.wire")
KNOWN_HEADS = {"HeadMemo", "InboundHead", "HeaderBlock", "KnownHead", "RequestHead", "ResponseHead", "_ClientPart"}
"""What is kept of heads that were seen: a bounded number. (Programs are kept as well, until they expire.)"""


def count_objects() -> Counter[str]:
    """Return how many objects there are of each class of the gateway."""
    gc.collect()
    kinds = Counter(type(each) for each in gc.get_objects())
    return Counter(
        {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in kinds.items() if kind.__module__.startswith(OURS)}
    )


@pytest.mark.parametrize("faults", [(), tuple(sorted(set(FAULTS) - {"kill", "restart"}))], ids=["quiet", "faults"])
def test_objects_do_not_grow_with_the_requests(faults: tuple[str, ...], tmp_path: Path) -> None:
    plans = [ClientPlan(kind=kind, num_requests=6, think_secs=0.5) for kind in sorted(KINDS)]
    stage = Stage(
        Scenario(seed=7, clients=(), faults=faults, fault_secs=600.0, has_programs=True, slots_per_backend=2), tmp_path
    )
    counts: list[Counter[str]] = []

    async def wave(number: int) -> None:
        troubles = [stage.loop.create_task(trouble) for trouble in chaos.troubles(stage, chaos.FAULTS)]
        clients = [SimulatedClient(stage.loop, f"{plan.kind}{number}", plan, (GATEWAY, PORT), stage.ledger) for plan in plans]
        await asyncio.gather(*(client.run() for client in clients))
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        await asyncio.sleep(IDLE_SECS)
        counts.append(count_objects())

    async def play() -> None:
        for engine in stage.engines:
            engine.boot()
        stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        await stage.process.start()
        for number in range(NUM_WAVES):
            await wave(number)
        await stage.process.stop()
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    stage.loop.close()
    assert len(stage.ledger.sent) > 100
    grown = {name: (counts[1][name], count) for name, count in counts[-1].items() if count > counts[1][name] + MOST_MORE}
    assert not {name: pair for name, pair in grown.items() if name.rpartition(".")[2] not in KNOWN_HEADS}
