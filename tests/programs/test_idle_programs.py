"""Programs that have ended without saying so: their memory goes to others at the pace of ticks."""

from __future__ import annotations

import pytest

from maitred.core.units import SECOND
from maitred.programs import ACTING_ESTIMATORS, ProgramAction, ProgramRequest, Programs, ProgramsConfig, ToolTimes, Usage

NUM_PROGRAMS = 40
BETWEEN = 3
"""Seconds from one program to the next."""


def waits(config: ProgramsConfig) -> list[int]:
    """Return how long each of some programs waited, in s. Each has one request of a second, and is never released. Five of them
    fill the memory."""
    core = Programs(config)
    core.set_backend(0, 0, models=["m"], capacity=10_000)
    granted: dict[int, int] = {}
    now = 0
    while len(granted) < NUM_PROGRAMS:
        decisions = list(core.advance(now * SECOND))
        for request in [r for r, at in granted.items() if at == now - 1]:
            decisions += core.end(request, Usage(1_890, 1_900), now * SECOND)
        number, is_not_yet = divmod(now, BETWEEN)
        if number < NUM_PROGRAMS and not is_not_yet:
            request = ProgramRequest(id=number, model="m", program=f"p{number}", prompt_tokens=1_890)
            decisions += core.begin(request, now * SECOND)
        granted |= {d.request: now for d in decisions if d.action is ProgramAction.GRANT and d.request is not None}
        core.check()
        now += 1
    return [granted[number] - number * BETWEEN for number in range(NUM_PROGRAMS)]


def test_programs_that_never_release_give_way_at_the_pace_of_ticks() -> None:
    config = ProgramsConfig(mode="tr")
    assert 0 < max(waits(config)) <= 2 * config.scheduler_interval_secs


def test_with_fixed_shares_the_same_programs_wait_to_be_displaced() -> None:
    config = ProgramsConfig(mode="tr", acting_estimator="fixed")
    assert max(waits(config)) >= config.displace_secs


def test_the_default_estimator_follows_the_flavour() -> None:
    assert ProgramsConfig().estimator == "learned"
    assert ProgramsConfig(flavour="thunderagent").estimator == "fixed"
    assert ProgramsConfig(acting_estimator="decay").estimator == "decay"


@pytest.mark.parametrize(
    ("usual", "acting_for", "share"),
    [(0, 5, 1.0), (0, 6, 0.5), (0, 8, 0.125), (10, 40, 1.0), (10, 41, 0.5)],
)
def test_learned_counts_all_for_four_times_the_usual_tool_time(usual: int, acting_for: int, share: float) -> None:
    tools = ToolTimes()
    if usual:
        tools.add(usual * SECOND)
    assert ACTING_ESTIMATORS.create("learned").share(acting_for * SECOND, tools) == pytest.approx(share)
