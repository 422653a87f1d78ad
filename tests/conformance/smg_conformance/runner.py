"""All scenarios of a file, and a report."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import msgspec

from . import expect, rows
from .failures import Failure
from .gateway import GatewayExited
from .play import Missed, Play, stage
from .scenario import Base, CannotCheck, File, Scenario, Unread, read_file, read_scenario


class Result(msgspec.Struct, frozen=True):
    id: str
    title: str
    kind: str
    failures: Sequence[Failure]
    secs: float
    note: str = ""
    details: Sequence[str] = ()
    """What happened, line by line, and the log of the gateway."""

    @property
    def passed(self) -> bool:
        return not self.failures


async def run_scenario(raw: msgspec.Raw | bytes, base: Base) -> Result:
    """Play it and compare; a second time if the first was only too slow in places."""
    begun = time.monotonic()
    unread = msgspec.json.decode(raw, type=Unread)
    kind, note = "?", ""
    details: list[str] = []
    try:
        scenario = read_scenario(raw)
        kind = scenario.kind
        failures = await _attempt(scenario, base, details)
        if failures and all(failure.late for failure in failures):
            note = f"played twice: the first time it was only late ({'; '.join(map(str, failures))})"
            failures = await _attempt(scenario, base, details)
    except CannotCheck as error:
        failures = [Failure(f"cannot check: {error}")]
    except Exception as error:  # a file may say what nobody thought of, and the other scenarios are still to be played
        failures = [Failure(f"cannot check: {type(error).__name__}: {error}")]
        details += traceback.format_exc().splitlines()
    return Result(unread.id, unread.title, kind, failures, time.monotonic() - begun, note, details)


async def _attempt(scenario: Scenario, base: Base, details: list[str]) -> list[Failure]:
    """Appends to `details`. Raises CannotCheck, if possible before anything is started."""
    try:
        if "rows" in scenario.expect:
            return await rows.check(scenario, base, details)
        play = Play(scenario)
        samples = expect.samples(scenario, list(play.record.requests))
        async with stage(scenario, base) as world:
            try:
                return list(expect.check(scenario, await play.on(world, samples)))
            finally:
                details += [*play.record.story(), *world.gateway.log]
    except (Missed, GatewayExited, OSError, TimeoutError) as error:
        return [Failure(str(error) or f"the gateway did not start: {type(error).__name__}")]


async def run_file(file: File, only: Collection[str] = (), jobs: int = 1) -> AsyncIterator[Result]:
    """Results in the order of the file; `only`: these ids, or all. At most `jobs` are played at once."""
    places = asyncio.Semaphore(jobs)

    async def one(raw: msgspec.Raw) -> Result:
        async with places:
            return await run_scenario(raw, file)

    chosen = [raw for raw in file.scenarios if not only or msgspec.json.decode(raw, type=Unread).id in only]
    tasks = [asyncio.create_task(one(raw)) for raw in chosen]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def load(path: Path, only: Collection[str]) -> File:
    """Raises FileProblem: it cannot be read, or has none of these scenarios."""
    try:
        file = read_file(path)
    except (OSError, msgspec.DecodeError) as error:
        raise FileProblem(f"{path}: {error}") from error
    known = {msgspec.json.decode(raw, type=Unread).id for raw in file.scenarios}
    if unknown := [name for name in only if name not in known]:
        raise FileProblem(f"{path}: no scenario {', '.join(unknown)}")
    return file


class FileProblem(Exception):  # noqa: N818
    """There is nothing to run."""
