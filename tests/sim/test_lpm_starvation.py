"""Under longest prefix match requests without a cached prefix starve; a bound on the wait ends that at almost no cost.

The two scenes are those of bench/starvation.py, whose table is in docs/policies.md.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from maitred.core.units import SECOND, from_seconds
from maitred.sim import Outcome, Results

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from starvation import COLD, SCENES, hit_rate, ttft

ONE_BY_ONE = 0.5
"""Seconds within which requests that are due together are admitted: the bound says which is next, not that there is room."""


@cache
def run(scene: str, policy: str) -> Results:
    results: Results = SCENES[scene].run(policy)
    assert set(results.outcome.tolist()) == {Outcome.COMPLETED}
    return results


def waits(results: Results) -> np.ndarray:
    """Return the time until admission, in µs."""
    assert not results.preemptions.any()  # so that the last admission is the first
    return results.scheduled - results.arrival


def cold_p99(results: Results) -> float:
    return ttft(results, results.request_id >= COLD, 99)


def test_under_lpm_cold_requests_wait_until_the_surge_is_over() -> None:
    fcfs, lpm = run("fits", "fcfs"), run("fits", "lpm")
    assert cold_p99(lpm) > 5 * cold_p99(fcfs)
    cold = lpm.request_id >= COLD
    early = cold & (lpm.arrival < 5 * SECOND)  # before a queue has formed some pass
    assert lpm.scheduled[cold & ~early].min() > 25 * SECOND
    assert ttft(lpm, ~cold, 99) < ttft(fcfs, ~cold, 99) / 5  # at their expense


@pytest.mark.parametrize("name", SCENES)
def test_bounded_keeps_what_lpm_finds_and_its_ceiling(name: str) -> None:
    scene = SCENES[name]
    lpm, bounded = run(name, "lpm"), run(name, scene.bounded)
    ceiling = from_seconds(scene.max_wait)
    assert waits(lpm).max() > ceiling + from_seconds(ONE_BY_ONE)  # there is something to bound
    assert waits(bounded).max() <= ceiling + from_seconds(ONE_BY_ONE)
    assert hit_rate(bounded) >= 0.9 * hit_rate(lpm)


@pytest.mark.parametrize("name", SCENES)
def test_nothing_that_arrived_later_starts_before_one_that_is_due(name: str) -> None:
    results = run(name, SCENES[name].bounded)
    ceiling = from_seconds(SCENES[name].max_wait)
    due = np.flatnonzero(waits(results) > ceiling)
    assert len(due) > 10
    for row in due:
        meanwhile = (results.scheduled >= results.arrival[row] + ceiling) & (results.scheduled < results.scheduled[row])
        assert (results.arrival[meanwhile] <= results.arrival[row]).all()


def test_lpm_is_worth_it_where_the_order_decides_what_is_still_cached() -> None:
    fcfs, lpm = run("thrashes", "fcfs"), run("thrashes", "lpm")
    assert hit_rate(lpm) > 1.2 * hit_rate(fcfs)
    assert cold_p99(lpm) < cold_p99(fcfs)  # more is served, so that even they gain
