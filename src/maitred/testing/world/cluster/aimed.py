"""Faults that are aimed: at an instant at which a slot may be used twice, or by several things that fail together.

Slots are in danger while something is said of them, which is a thousandth of the time: a fault at a random instant hits it
seldom. So some wait until a grant, a preemption or a beat is sent (`LinkWatch.next_sent`), and strike then, or as it arrives.

    pause at        a gateway stands still just as it is granted a slot, or has sent a beat: it wakes up with old grants
    freeze          it stands still, and its connection to the scheduler is reset: nobody knows what it has taken
    reset at        its connection is reset just then
    partition       machines, and the store, are on two sides, between which nothing arrives; engines are on both
    lose leader     the scheduler that leads is killed, and one gateway stands still or is cut off, and comes late to the next
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from maitred.scheduler.link.messages import Beat, Grant, Preempt
from maitred.testing.world.chaos import Harm, to_its_end
from maitred.testing.world.cluster.link_watch import is_of_link
from maitred.testing.world.cluster.store import STORE

if TYPE_CHECKING:
    from maitred.testing.world.cluster.processes import ClusterProcess
    from maitred.testing.world.cluster.stage import ClusterStage

_PATIENCE_SECS: Final = 5.0
_LONG_SECS: Final = (2.5, 4.0, 6.0, 8.0)
"""Pauses and cuts about as long as leases, and longer."""


async def _gateway_at(stage: ClusterStage, random: Random, *kinds: type) -> ClusterProcess | None:
    """Return the gateway at the other end of the next message of one of these kinds, a little later, or None if none comes."""
    kind = random.choice(kinds)
    try:
        async with asyncio.timeout(_PATIENCE_SECS):
            address = await stage.watch.next_sent(kind)
    except TimeoutError:
        return None
    if kind is not Beat:  # That one is to be answered while its gateway stands still.
        await asyncio.sleep(random.choice((0.0, 1.0, 2.0)) * stage.network.link.delay())
    process = stage.process_at(address)
    return process if process is not None and process.is_up and not process.is_paused else None


async def _stand_still(process: ClusterProcess, secs: float) -> None:
    process.pause()
    try:
        await asyncio.sleep(secs)
    finally:
        process.resume()


def _reset_links(stage: ClusterStage, process: ClusterProcess) -> None:
    for each in [*stage.network.connections.values()]:
        if is_of_link(each) and each.source[0] == process.address:
            each.reset()


async def _pause_at(stage: ClusterStage, random: Random) -> None:
    process = await _gateway_at(stage, random, Beat, Beat, Grant)
    if process is not None:
        await _stand_still(process, random.choice(_LONG_SECS))


async def _freeze(stage: ClusterStage, random: Random) -> None:
    process = await _gateway_at(stage, random, Grant)
    if process is not None:
        _reset_links(stage, process)
        await _stand_still(process, random.choice((0.5, 1.0, 2.0)))


async def _reset_at(stage: ClusterStage, random: Random) -> None:
    process = await _gateway_at(stage, random, Grant, Preempt)
    if process is not None:
        _reset_links(stage, process)


async def _between(stage: ClusterStage, one: Sequence[str], other: Sequence[str], secs: float) -> None:
    """Deliver nothing between two sides for a time."""
    ways = [way for here in one for there in other for way in ((here, there), (there, here))]
    for way in ways:
        stage.network.cut_way(*way)
    try:
        await asyncio.sleep(secs)
    finally:
        for way in ways:
            stage.network.mend_way(*way)


async def _partition(stage: ClusterStage, random: Random) -> None:
    """Cut the scheduler that leads from the store, with some of the gateways on its side."""
    leaders = [each for each in stage.schedulers if each.host is not None and each.host.leadership.epoch is not None]
    if not leaders:
        return
    leader = random.choice(leaders)
    gateways = [each.address for each in stage.gateways]
    with_it = random.sample(gateways, random.randint(1, len(gateways)))
    others = [each for each in gateways if each not in with_it]
    rest = [each.address for each in stage.schedulers if each is not leader]
    await _between(stage, [leader.address, *with_it], [STORE, *others, *rest], random.choice((4.0, 6.0, 10.0)))


async def _lose_leader(stage: ClusterStage, random: Random) -> None:
    """End the scheduler that leads, as it grants, and have a gateway come late to the next one."""
    late = await _gateway_at(stage, random, Grant)
    leader = next((each for each in stage.schedulers if each.host is not None and each.host.leadership.epoch), None)
    if leader is None or late is None:
        return
    schedulers, secs = [each.address for each in stage.schedulers], random.choice((1.0, 2.5, 4.0, 6.0))
    away = _between(stage, [late.address], schedulers, secs) if random.random() < 0.5 else _stand_still(late, secs)
    lateness = asyncio.ensure_future(away)
    try:
        if random.random() < 0.5:
            await to_its_end(leader.restart())
        else:
            await _kill(leader, random.choice((0.5, 4.0)))
        await lateness
    finally:
        lateness.cancel()
        await asyncio.wait({lateness})


async def _kill(process: ClusterProcess, secs: float) -> None:
    process.kill()
    try:
        await asyncio.sleep(secs)
    finally:
        await to_its_end(process.start())


AIMED_FAULTS: Final[dict[str, tuple[Harm[ClusterStage], float]]] = {
    "pause at": (_pause_at, 4.0),
    "freeze": (_freeze, 4.0),
    "reset at": (_reset_at, 3.0),
    "partition": (_partition, 8.0),
    "lose leader": (_lose_leader, 8.0),
}
