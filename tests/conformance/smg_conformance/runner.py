"""All scenarios of a file, and a report."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from . import expect, rows
from .failures import Failure, unless_late
from .gateway import GatewayExited, Launcher, in_own_process
from .play import Missed, Play, stage
from .scenario import Base, CannotCheck, File, Scenario, Unread, read_file, read_scenario
from .turns import Turns

ATTEMPTS = 3


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


Attempt: TypeAlias = Callable[[msgspec.Raw | bytes, Turns, list[str]], Awaitable[list[Failure]]]
"""Plays one scenario once: returns what was not as expected, and appends what happened to the list. Raises CannotCheck, if
possible before anything is started."""


def run(
    scenarios: Iterable[msgspec.Raw | bytes], base: Base, jobs: int = 1, launch: Launcher = in_own_process
) -> AsyncIterator[Result]:
    """Results in the order of the scenarios, of which at most `jobs` are played at once."""

    async def attempt(raw: msgspec.Raw | bytes, turns: Turns, details: list[str]) -> list[Failure]:
        return await _attempt(read_scenario(raw), base, turns, details)

    return play_all(scenarios, attempt, jobs, launch)


async def play_all(
    scenarios: Iterable[msgspec.Raw | bytes], attempt: Attempt, jobs: int, launch: Launcher
) -> AsyncIterator[Result]:
    """Results in the order of the scenarios, of which at most `jobs` are played at once. One that fails and
    was only late is played again, alone, up to ATTEMPTS times in all."""
    turns = Turns(jobs, launch)
    tasks = [asyncio.create_task(_run(raw, attempt, turns)) for raw in scenarios]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(raw: msgspec.Raw | bytes, attempt: Attempt, turns: Turns) -> Result:
    async with turns.place():
        result = await _play(raw, attempt, turns)
    for number in range(2, ATTEMPTS + 1):
        if result.passed or not all(failure.late for failure in result.failures):
            break
        note = f"played {number} times: before, it was only late ({'; '.join(map(str, result.failures))})"
        async with turns.all_places():
            result = msgspec.structs.replace(await _play(raw, attempt, turns), note=note)
    return result


async def _play(raw: msgspec.Raw | bytes, attempt: Attempt, turns: Turns) -> Result:
    begun = time.monotonic()
    unread = msgspec.json.decode(raw, type=Unread)
    details: list[str] = []
    try:
        failures = await attempt(raw, turns, details)
    except CannotCheck as error:
        failures = [Failure(f"cannot check: {error}")]
    except (Missed, GatewayExited, OSError, TimeoutError) as error:
        failures = [Failure(str(error) or f"the gateway did not start: {type(error).__name__}")]
    except Exception as error:  # a file may have any content, and the other scenarios are still to be played
        failures = [Failure(f"cannot check: {type(error).__name__}: {error}")]
        details += traceback.format_exc().splitlines()
    return Result(unread.id, unread.title, unread.kind, failures, time.monotonic() - begun, details=details)


async def _attempt(scenario: Scenario, base: Base, turns: Turns, details: list[str]) -> list[Failure]:
    if "rows" in scenario.expect:
        return await rows.check(scenario, base, turns, details)
    play = Play(scenario)
    samples = expect.samples(scenario, list(play.record.requests))
    async with stage(scenario, base, turns) as world, turns.playing():
        try:
            record = await play.on(world, samples)
            return [unless_late(failure, record.lag_secs) for failure in expect.check(scenario, record)]
        finally:
            details += [*play.record.story(), *world.gateway.log]


def chosen(file: File, only: Collection[str]) -> Sequence[msgspec.Raw]:
    """The scenarios of these ids, or all."""
    return [raw for raw in file.scenarios if not only or msgspec.json.decode(raw, type=Unread).id in only]


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
