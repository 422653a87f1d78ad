"""Learned limits of engines when another scheduler leads: gateways keep them for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from maitred.admission.learned_slots import LearnedLimit
from maitred.core.units import SECOND
from maitred.scheduler.link.messages import Note
from maitred.scheduler.link.terms import KeptLimits
from maitred.scheduler.sharing.kept_limits import LimitNews
from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.cluster.processes import SchedulerProcess
from maitred.testing.world.cluster.scenario import ClusterScenario
from maitred.testing.world.cluster.simulation import ClusterSimulation

LIMIT = 8
BULK = ClientPlan(kind="stream", num_requests=45, priority="bulk", max_tokens=20, think_secs=0.01)


def leader_of(simulation: ClusterSimulation) -> SchedulerProcess:
    (leader,) = (each for each in simulation.stage.schedulers if each.host is not None and each.host.leadership.epoch)
    return leader


def learned_by(scheduler: SchedulerProcess) -> LearnedLimit | None:
    controller = scheduler.gateway.scheduler.fleet.backends[0].learned_slots
    return None if controller is None else controller.learned


@pytest.mark.parametrize("does_tell", [False, True])
def test_the_next_leader_has_no_more_at_an_engine_than_the_one_before(does_tell: bool, tmp_path: Path) -> None:
    """That the log of each scheduler runs again to the same bytes is checked at the end of every world."""
    scenario = ClusterScenario(seed=5, clients=(BULK,) * 16, num_engines=1, engine_limits=(LIMIT,), hides_slots=True)
    simulation = ClusterSimulation(scenario, tmp_path)
    stage = simulation.stage

    async def end_the_leader() -> None:
        await asyncio.sleep(9)
        former = leader_of(simulation)
        assert learned_by(former) == LearnedLimit(LIMIT, is_trusted=True)
        assert simulation.checks.most_at_engines > LIMIT + 1  # It had to be searched for.
        stage.num_harms += 1
        if does_tell:
            await former.stop()
        else:
            former.kill()
        num_grants, simulation.checks.most_at_engines = stage.watch.num_grants, 0
        await asyncio.sleep(9)
        assert stage.watch.num_grants > num_grants + 100
        assert simulation.checks.most_at_engines <= LIMIT + 1  # one for a probe
        assert leader_of(simulation) is not former
        assert learned_by(leader_of(simulation)) == LearnedLimit(LIMIT, is_trusted=True)
        await former.start()
        stage.num_harms, stage.mended_at = 0, stage.loop.micros

    ending = stage.loop.create_task(end_the_leader())
    assert simulation.run().violations == []
    ending.result()
    lines = [line for each in stage.schedulers for line in stage.decision_log(each.name).read_bytes().splitlines()]
    entries = [msgspec.json.decode(line) for line in lines if b"recall" in line]
    assert {(entry["room"], entry["input"]) for entry in entries if "input" in entry} == {("slots", "recall")}


class Learning:
    """In place of the controllers of a scheduler."""

    def __init__(self) -> None:
        self.known: dict[str, LearnedLimit] = {}

    def learned(self) -> dict[str, LearnedLimit]:
        return {**self.known}

    def recall(self, limits: dict[str, LearnedLimit]) -> None:
        self.known |= limits


class End:
    """In place of the scheduler's end of the links."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.told: list[tuple[KeptLimits, object]] = []

    def tell(self, note: Note, to: object = None) -> None:
        self.told.append((msgspec.msgpack.decode(note.payload, type=KeptLimits), to))


def limits(**numbers: int) -> dict[str, LearnedLimit]:
    return {url: LearnedLimit(number, is_trusted=True) for url, number in numbers.items()}


def test_the_newest_that_any_gateway_brings_is_taken_over_but_for_what_was_found_out_since() -> None:
    learning, end = Learning(), cast(Any, End(7))
    news = LimitNews(cast(Any, learning))
    learning.known = limits(a=5)  # of an earlier term of its own
    news.begin_term()

    def bring(epoch: int, number: int, **kept: int) -> dict[str, LearnedLimit]:
        news.welcome(end, ("g", "1"), KeptLimits(epoch, number, limits(**kept)))
        return learning.known

    assert bring(3, 9, a=8, b=2) == limits(a=8, b=2)
    assert bring(3, 8, a=9, b=9) == limits(a=8, b=2)  # older
    assert bring(5, 1, a=10) == limits(a=10, b=2)
    learning.known |= limits(b=4)  # by a look
    assert bring(6, 2, a=11, b=12) == limits(a=11, b=4)
    assert bring(7, 1, a=1, b=1) == limits(a=11, b=4)  # what this leader has told itself
    news.begin_term()
    assert bring(6, 3, b=6) == limits(a=11, b=6)


def test_gateways_are_told_once_a_second_what_has_changed_and_each_that_comes() -> None:
    learning, end = Learning(), End(7)
    news = LimitNews(cast(Any, learning))

    def told(now: int, *, at_once: bool = False) -> list[tuple[int, dict[str, LearnedLimit]]]:
        end.told.clear()
        news.tell(cast(Any, end), now, at_once=at_once)
        return [(kept.epoch, kept.limits) for kept, _ in end.told]

    assert told(0) == []
    learning.known = limits(a=8)
    assert told(SECOND - 1) == []
    assert told(SECOND) == [(7, limits(a=8))]
    assert told(2 * SECOND) == []
    learning.known = limits(a=9)
    assert told(2 * SECOND + 1) == []
    assert told(2 * SECOND + 2, at_once=True) == [(7, limits(a=9))]
    end.told.clear()
    news.welcome(cast(Any, end), ("g", "1"), None)
    ((kept, to),) = end.told
    assert (kept, to) == (KeptLimits(7, 3, limits(a=9)), ("g", "1"))
    news.begin_term()
    assert told(4 * SECOND) == [(7, limits(a=9))]
