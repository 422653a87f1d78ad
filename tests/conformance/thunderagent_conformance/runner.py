"""All scenarios of a file. Each is played on a gateway of its own, with each flavour, and in each way that it tells apart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from ..smg_conformance.failures import Failure, unless_late
from ..smg_conformance.gateway import Launcher, in_own_process
from ..smg_conformance.runner import Result, play_all
from ..smg_conformance.turns import Turns
from . import expect, intentions, rows
from .gateway import Flavour, flavours
from .play import play
from .scenario import Scenario, read_scenario, variants


def run(scenarios: Iterable[msgspec.Raw | bytes], jobs: int = 1, launch: Launcher = in_own_process) -> AsyncIterator[Result]:
    """Results in the order of the scenarios, of which at most `jobs` are played at once."""
    return play_all(scenarios, _attempt, jobs, launch)


async def _attempt(raw: msgspec.Raw | bytes, turns: Turns, details: list[str]) -> list[Failure]:
    scenario = read_scenario(raw)
    found: list[Failure] = []
    for flavour in flavours(scenario):
        if isinstance(scenario.timeline, str):
            found += await rows.check(scenario, flavour, turns, details)
            continue
        for name, variant in variants(scenario):
            failures = await _play(variant, flavour, turns, details)
            found += [msgspec.structs.replace(failure, text=f"{name}: {failure}") for failure in failures] if name else failures
    return found


async def _play(scenario: Scenario, flavour: Flavour, turns: Turns, details: list[str]) -> list[Failure]:
    expected = intentions.effective(scenario)
    expect.check_keys(expected, scenario)
    record = await play(
        scenario,
        flavour,
        turns,
        details,
        sees_estimates=expect.sees_estimates(expected),
        questions=expect.questions(expected),
    )
    found = [*expect.check(expected, record), *intentions.check(scenario, record)]
    return [unless_late(failure, record.lag_secs) for failure in found]
