"""Faults of a world. Each kind is a coroutine that does harm at times which it draws from a generator of its own.

To add a kind: write a function that harms once and, if need be, mends it later, and register it in `FAULTS` with the mean time
between two harms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from maitred.admission import ClassConfig, ClassesConfig, TenantPolicy
from maitred.testing.world.behaviours import MODEL, OTHER_MODEL
from maitred.testing.world.lies import LIES
from maitred.testing.world.machine import tear

if TYPE_CHECKING:
    from maitred.testing.world.engines import Engine
    from maitred.testing.world.stage import Scene, Stage
    from maitred.testing.world.transport import Connection

S = TypeVar("S", bound="Scene")
Harm: TypeAlias = Callable[[S, Random], Awaitable[None]]
"""Does harm once, and mends it."""


async def play_clients(stage: S, kinds: Mapping[str, tuple[Harm[S], float]]) -> None:
    """Let the clients of a scenario do what they are to do, while its faults happen. `kinds` as in `troubles`."""
    harming = [stage.loop.create_task(trouble) for trouble in troubles(stage, kinds)]
    await asyncio.gather(*(client.run() for client in stage.clients))
    for trouble in harming:
        trouble.cancel()  # and each mends what it has done
    for ended in await asyncio.gather(*harming, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


def troubles(stage: S, kinds: Mapping[str, tuple[Harm[S], float]]) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what makes the faults of a scenario. `kinds` has each kind with the mean time between two harms, in seconds."""
    for name in stage.scenario.faults:
        harm, mean_secs = kinds[name]
        yield _repeat(stage, name, harm, mean_secs / stage.scenario.fault_pace)


async def _repeat(stage: S, name: str, harm: Harm[S], mean_secs: float) -> None:
    random = stage.loop.draws.of(f"fault {name}")
    until = stage.loop.time() + stage.scenario.fault_secs
    while True:
        await asyncio.sleep(random.expovariate(1.0 / mean_secs))
        if stage.loop.time() > until:
            return
        stage.note_fault(name)
        stage.num_harms += 1
        began_at = stage.loop.micros
        try:
            await harm(stage, random)
        finally:
            stage.num_harms -= 1
            stage.mended_at = stage.loop.micros
            stage.harms.append((name, began_at, stage.mended_at))


def _engine(stage: Scene, random: Random) -> Engine:
    return random.choice(stage.engines)


def _connection(stage: Scene, random: Random) -> Connection | None:
    connections = list(stage.network.connections.values())
    return random.choice(connections) if connections else None


async def _reset(stage: Scene, random: Random) -> None:
    connection = _connection(stage, random)
    if connection is not None:
        connection.reset()


async def _cut(stage: Scene, random: Random) -> None:
    connection = _connection(stage, random)
    if connection is None:
        return
    forth = random.random() < 0.7
    connection.cut(forth=forth, back=not forth or random.random() < 0.7)
    try:
        await asyncio.sleep(random.choice((0.1, 2.0, 20.0)))
    finally:
        if random.random() < 0.5:
            connection.heal()
        else:
            connection.reset()


async def _silence(stage: Scene, random: Random) -> None:
    engine = _engine(stage, random)
    address = engine.machine.place.address
    connections = [each for each in stage.network.connections.values() if each.target[0] == address]
    stage.network.silent.add(address)
    for connection in connections:
        connection.cut()
    try:
        await asyncio.sleep(random.choice((0.5, 5.0, 30.0)))
    finally:
        stage.network.silent.discard(address)
        for connection in connections:
            connection.heal()


async def _crash(stage: Scene, random: Random) -> None:
    engine = _engine(stage, random)
    engine.crash()
    try:
        await asyncio.sleep(random.choice((0.01, 2.0, 10.0)))
    finally:
        engine.boot(random.choice((None, 1, 3, 8)))


async def _die_at_byte(stage: Scene, random: Random) -> None:
    engine = _engine(stage, random)
    engine.dies_in_bytes = random.randint(1, 3_000)
    try:
        await asyncio.sleep(5.0)
    finally:
        engine.dies_in_bytes = None
        engine.boot()


def _for_a_time(state: str, *secs: float) -> Harm[Scene]:
    """Return the harm that an attribute of an engine is True for one of so many `secs`."""

    async def harm(stage: Scene, random: Random) -> None:
        engine = _engine(stage, random)
        setattr(engine, state, True)
        try:
            await asyncio.sleep(random.choice(secs))
        finally:
            setattr(engine, state, False)

    return harm


async def _lag(stage: Scene, random: Random) -> None:
    engine = _engine(stage, random)
    engine.set_lag(True)
    try:
        await asyncio.sleep(random.choice((2.0, 20.0)))
    finally:
        engine.set_lag(False)


async def _lie(stage: Scene, random: Random) -> None:
    engine = _engine(stage, random)
    engine.lie = LIES[random.choice(sorted(LIES))]
    try:
        await asyncio.sleep(random.choice((2.0, 20.0)))
    finally:
        engine.lie = None


async def _other_model(stage: Scene, random: Random) -> None:
    """Have an engine come back with another model, and later with its own one."""
    engine = _engine(stage, random)
    engine.crash()
    try:
        await asyncio.sleep(random.choice((0.01, 2.0)))
        engine.boot(model=OTHER_MODEL)
        await asyncio.sleep(random.choice((2.0, 15.0)))
    finally:
        engine.crash()
        engine.boot(model=MODEL)


async def _drain(stage: Stage, random: Random) -> None:
    engine = _engine(stage, random)
    await _operate(stage, "drain", engine)
    try:
        await asyncio.sleep(random.choice((0.5, 10.0)))
    finally:
        await _operate(stage, "undrain", engine)


async def _reload(stage: Stage, random: Random) -> None:
    change_rules(stage, random)
    stage.process.reload()


def change_rules(stage: Scene, random: Random) -> None:
    """Write other rules of admission into the files of the configuration."""
    before = stage.settings
    policy = TenantPolicy(
        max_in_flight=random.choice((None, 1, 3)),
        max_queued=random.choice((None, 2)),
        max_class=random.choice((None, "bulk")),
    )
    rules = ClassConfig(
        queue_timeout_secs=random.choice((None, 0.5, 5.0)),
        queue_size=random.choice((None, 1)),
        starvation_threshold_secs=random.choice((None, 0.2)),
    )
    changed = {
        "on_preempt": random.choice(("retry", "reject")),
        "reserve": random.choice((None, "fixed", "adaptive")),
        "tenant_policies": random.choice(({}, {f"header:{random.choice(('acme', 'beta'))}": policy})),
        "classes": ClassesConfig(**{random.choice(("interactive", "default", "bulk")): rules}),
    }
    admission = msgspec.structs.replace(before.admission, **changed)
    stage.settings = msgspec.structs.replace(before, admission=admission)


async def _kill(stage: Stage, random: Random) -> None:
    if not stage.process.is_up:
        return
    stage.process.kill()
    if random.random() < 0.5:  # The machine has lost its power, and with it what was not on the disk.
        tear(stage.decision_log, random)
        stage.process.lose_log_behind(stage.decision_log.stat().st_size)
    try:
        await asyncio.sleep(random.choice((0.01, 2.0)))
    finally:
        await to_its_end(stage.process.start())


async def _restart(stage: Stage, random: Random) -> None:
    """Add and remove backends, by a reload or a start. One that a reload removes is drained first."""
    if not stage.process.is_up:
        return
    backends = random.sample(stage.engines, random.randint(1, len(stage.engines)))
    gateway = msgspec.structs.replace(stage.settings.gateway, backends=tuple(engine.url for engine in backends))
    stage.settings = msgspec.structs.replace(stage.settings, gateway=gateway)
    if random.random() < 0.3:
        stage.process.reload()
    else:
        await to_its_end(stage.process.restart())


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, even if the fault of which it is a part is cancelled."""
    doing = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(doing)
    finally:
        await doing


async def _stand_still(stage: Scene, random: Random) -> None:
    began_at = stage.loop.micros
    stage.loop.stand_still(random.choice((0.3, 2.0, 40.0)))
    stage.stands.append((began_at, stage.loop.micros))


async def _slow_disk(stage: Stage, random: Random) -> None:
    stage.machine.disk.slow_secs = random.choice((0.2, 2.0))
    await _heal_disk_later(stage, random)


async def _full_disk(stage: Stage, random: Random) -> None:
    stage.machine.disk.is_full = True
    await _heal_disk_later(stage, random)


async def _hung_disk(stage: Stage, random: Random) -> None:
    stage.machine.disk.is_hung = True
    await _heal_disk_later(stage, random)


async def _heal_disk_later(stage: Stage, random: Random) -> None:
    try:
        await asyncio.sleep(random.choice((1.0, 10.0)))
    finally:
        stage.machine.disk.heal()


async def _operate(stage: Stage, what: str, engine: Engine) -> None:
    """Call a page of the operator."""
    body = msgspec.json.encode({"backend": engine.url})
    try:
        reader, writer = await asyncio.open_connection("10.0.0.2", 9090)
        writer.write(
            b"POST /admin/%b HTTP/1.1\r\nhost: 10.0.0.2\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (what.encode(), len(body), body)
        )
        status = (await reader.readline()).split()[1]
        writer.close()
    except (OSError, IndexError):
        return
    is_there = any(backend.url == engine.url for backend in stage.process.gateway.scheduler.fleet.backends)
    # While a reload adds or removes it, it may be known or not.
    is_settled = is_there == (engine.url in stage.settings.gateway.backends)
    if is_settled and is_there != (status == b"200"):
        stage.ledger.violations.append(f"/admin/{what} has answered {status!r}")


COMMON_FAULTS: Final[dict[str, tuple[Harm[Scene], float]]] = {
    "reset": (_reset, 3.0),
    "cut": (_cut, 5.0),
    "silence": (_silence, 15.0),
    "crash": (_crash, 15.0),
    "die at byte": (_die_at_byte, 5.0),
    "hang": (_for_a_time("hangs", 1.0, 20.0), 15.0),
    "fail": (_for_a_time("fails", 0.5, 10.0), 10.0),
    "stall health": (_for_a_time("stalls_health", 1.0, 15.0), 10.0),
    "lag": (_lag, 10.0),
    "stand still": (_stand_still, 10.0),
}
"""Faults of engines, connections and time."""
FAULTS: Final[dict[str, tuple[Harm[Stage], float]]] = {
    **COMMON_FAULTS,
    "lie": (_lie, 10.0),
    "other model": (_other_model, 15.0),
    "drain": (_drain, 10.0),
    "reload": (_reload, 5.0),
    "kill": (_kill, 10.0),
    "restart": (_restart, 10.0),
    "slow disk": (_slow_disk, 10.0),
    "full disk": (_full_disk, 10.0),
    "hung disk": (_hung_disk, 10.0),
}
