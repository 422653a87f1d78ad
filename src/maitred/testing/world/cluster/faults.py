"""Faults of gateways, schedulers, their links and their store, beside those of engines (`chaos`).

Each harms once, and mends what it has done within half a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from maitred.testing.world.chaos import COMMON_FAULTS, Harm, change_rules, to_its_end
from maitred.testing.world.cluster.aimed import AIMED_FAULTS
from maitred.testing.world.cluster.link_watch import is_of_link
from maitred.testing.world.cluster.store import STORE

if TYPE_CHECKING:
    from maitred.testing.world.cluster.processes import ClusterProcess, SchedulerProcess
    from maitred.testing.world.cluster.stage import ClusterStage

_CUT_SECS: Final = (0.5, 2.0, 5.0, 15.0)
_PAUSE_SECS: Final = (0.5, 2.5, 5.0, 8.0)


P = TypeVar("P", bound="ClusterProcess")


def _running(processes: Sequence[P]) -> list[P]:
    """Return the processes that have got no signal to end."""
    return [process for process in processes if process.is_up]


def _leads(scheduler: SchedulerProcess) -> bool:
    host = scheduler.host
    return host is not None and host.leadership.epoch is not None


def _scheduler(stage: ClusterStage, random: Random) -> Sequence[ClusterProcess]:
    """Return a scheduler that runs, mostly the one that leads, or nothing."""
    running = _running(stage.schedulers)
    leading = [each for each in running if _leads(each)]
    return [random.choice(leading if leading and random.random() < 0.7 else running)] if running else []


def _gateway(stage: ClusterStage, random: Random) -> Sequence[ClusterProcess]:
    """Return a gateway that runs, or nothing."""
    running = _running(stage.gateways)
    return [random.choice(running)] if running else []


async def _cut_ways(stage: ClusterStage, random: Random, one: str, other: str) -> None:
    """Cut the ways between two machines, or one of them, for a time."""
    ways = random.choice(([(one, other)], [(other, one)], [(one, other), (other, one)]))
    for way in ways:
        stage.network.cut_way(*way)
    try:
        await asyncio.sleep(random.choice(_CUT_SECS))
    finally:
        for way in ways:
            stage.network.mend_way(*way)


async def _cut_link(stage: ClusterStage, random: Random) -> None:
    await _cut_ways(stage, random, random.choice(stage.gateways).address, random.choice(stage.schedulers).address)


async def _cut_from_engine(stage: ClusterStage, random: Random) -> None:
    machine = random.choice([*stage.processes])
    await _cut_ways(stage, random, machine.address, random.choice(stage.engines).machine.place.address)


async def _cut_from_store(stage: ClusterStage, random: Random) -> None:
    cut_off = _scheduler(stage, random) if random.random() < 0.8 else [random.choice([*stage.processes])]
    for process in cut_off:
        await _cut_ways(stage, random, process.address, STORE)


async def _reset_link(stage: ClusterStage, random: Random) -> None:
    links = [each for each in stage.network.connections.values() if is_of_link(each)]
    if links:
        random.choice(links).reset()


async def _kill(stage: ClusterStage, random: Random, victims: Sequence[ClusterProcess]) -> None:
    for process in victims:
        process.kill()
        try:
            await asyncio.sleep(random.choice((0.01, 1.0, 4.0)))
        finally:
            await to_its_end(process.start())


async def _lose_power(stage: ClusterStage, random: Random, victims: Sequence[ClusterProcess]) -> None:
    """Kill processes with their machines: nobody is told that their connections are gone, for a time."""
    for process in victims:
        connections = [each for each in stage.network.connections.values() if each.source[0] == process.address]
        for connection in connections:
            connection.cut()
        try:
            await _kill(stage, random, [process])
            await asyncio.sleep(random.choice((0.0, 2.0, 8.0)))
        finally:
            for connection in connections:
                connection.heal()


async def _restart(stage: ClusterStage, random: Random, chosen: Sequence[ClusterProcess]) -> None:
    for process in chosen:
        await to_its_end(process.restart())


async def _pause(stage: ClusterStage, random: Random, chosen: Sequence[ClusterProcess]) -> None:
    for process in chosen:
        process.pause()
        try:
            await asyncio.sleep(random.choice(_PAUSE_SECS))
        finally:
            process.resume()


def _of(
    choose: Callable[[ClusterStage, Random], Sequence[ClusterProcess]],
    harm: Callable[[ClusterStage, Random, Sequence[ClusterProcess]], Awaitable[None]],
) -> Harm[ClusterStage]:
    """Build the fault that harms a process that `choose` draws."""

    async def do(stage: ClusterStage, random: Random) -> None:
        await harm(stage, random, choose(stage, random))

    return do


async def _pause_store(stage: ClusterStage, random: Random) -> None:
    stage.store.is_paused = True
    try:
        await asyncio.sleep(random.choice(_PAUSE_SECS))
    finally:
        stage.store.resume()


async def _kill_store(stage: ClusterStage, random: Random) -> None:
    stage.store.kill()
    try:
        await asyncio.sleep(random.choice((0.1, 1.0, 5.0, 15.0)))
    finally:
        stage.store.start(keeps=random.random() < 0.5)


async def _slow_store(stage: ClusterStage, random: Random) -> None:
    stage.store.slow_secs = random.choice((0.3, 1.0, 3.0))
    try:
        await asyncio.sleep(random.choice(_CUT_SECS))
    finally:
        stage.store.slow_secs = 0.0


async def _lossy_store(stage: ClusterStage, random: Random) -> None:
    stage.store.loss_share = random.choice((0.2, 0.6))
    try:
        await asyncio.sleep(random.choice(_CUT_SECS))
    finally:
        stage.store.loss_share = 0.0


async def _reload(stage: ClusterStage, random: Random) -> None:
    change_rules(stage, random)
    for process in _running([*stage.processes]):
        if random.random() < 0.7:
            process.reload()


async def _crash(stage: ClusterStage, random: Random) -> None:
    """Crash an engine, which comes back with the same limit: that more are at an engine than it runs is held against it."""
    engine = random.choice(stage.engines)
    engine.crash()
    try:
        await asyncio.sleep(random.choice((0.01, 2.0, 10.0)))
    finally:
        engine.boot()


FAULTS: Final[dict[str, tuple[Harm[ClusterStage], float]]] = {
    **{name: COMMON_FAULTS[name] for name in ("reset", "cut", "silence", "die at byte", "hang", "fail", "stall health")},
    "crash": (_crash, 15.0),
    "cut link": (_cut_link, 5.0),
    "cut from engine": (_cut_from_engine, 10.0),
    "cut from store": (_cut_from_store, 8.0),
    "reset link": (_reset_link, 4.0),
    "kill gateway": (_of(_gateway, _kill), 8.0),
    "gateway loses power": (_of(_gateway, _lose_power), 8.0),
    "kill scheduler": (_of(_scheduler, _kill), 10.0),
    "restart gateway": (_of(_gateway, _restart), 12.0),
    "restart scheduler": (_of(_scheduler, _restart), 12.0),
    "pause gateway": (_of(_gateway, _pause), 7.0),
    "pause scheduler": (_of(_scheduler, _pause), 8.0),
    "pause store": (_pause_store, 10.0),
    "kill store": (_kill_store, 15.0),
    "slow store": (_slow_store, 10.0),
    "lossy store": (_lossy_store, 10.0),
    "reload": (_reload, 5.0),
    **AIMED_FAULTS,
}
OF_ENGINES: Final = frozenset(("reset", "cut", "silence", "die at byte", "hang", "fail", "stall health", "crash"))
"""Faults of engines, and of connections to them among others."""


def of_engines(kinds: Sequence[str]) -> bool:
    """Return whether some of these kinds of faults are those of engines."""
    return not OF_ENGINES.isdisjoint(kinds)
