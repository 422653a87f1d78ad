"""SGLang's HRRN experiment, in a few runs of the scene of bench/field_hrrn.py (docs/evidence.md has all of them)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from field_hrrn import OTHERS, RECORDED, TtftFigures, deviation, mean, simulated
from field_scene import Scene

BAND = 0.25
"""Largest deviation in the mean of eight runs. In the mean of 48 all six ratios are within a fifth of the record."""


@pytest.fixture(scope="module")
def found() -> dict[str, TtftFigures]:
    return {policy: mean(runs) for policy, runs in simulated(Scene(), range(42, 50)).items()}


@pytest.mark.parametrize("figure", ["mean", "p99"])
@pytest.mark.parametrize("policy", OTHERS)
def test_a_policy_does_to_fcfs_what_was_recorded(found: dict[str, TtftFigures], policy: str, figure: str) -> None:
    assert abs(deviation(found, policy, figure)) < BAND


def test_means_are_in_the_order_of_the_record(found: dict[str, TtftFigures]) -> None:
    assert sorted(found, key=lambda policy: found[policy].mean) == sorted(RECORDED, key=lambda policy: RECORDED[policy].mean)


def test_tails_are_in_the_order_of_the_record_but_for_the_two_that_tie(found: dict[str, TtftFigures]) -> None:
    tails = {policy: run.p99 for policy, run in found.items()}
    assert tails["hrrn"] < tails["fcfs"] < min(tails["lpm"], tails["dfs-weight"]) / 2


def test_all_three_serve_more_than_fcfs_and_hrrn_most(found: dict[str, TtftFigures]) -> None:
    rates = {policy: run.input_rate for policy, run in found.items()}
    assert rates["fcfs"] * 1.1 < min(rates["lpm"], rates["dfs-weight"])
    assert max(rates["lpm"], rates["dfs-weight"]) * 1.1 < rates["hrrn"]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
def test_no_other_policy_would_pass_for_hrrn(found: dict[str, TtftFigures], policy: str) -> None:
    assert not all(abs(deviation({**found, "hrrn": found[policy]}, "hrrn", figure)) < BAND for figure in ("mean", "p99"))
