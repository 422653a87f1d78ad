"""The simulator against closed formulas of queueing theory, on short runs with fixed seeds; `bench/theory.py` has long ones.

The intervals are of 99 %, and the same seeds give the same runs, so a check that holds holds always.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maitred.core.student_t import mean_interval

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from theory_scenes import SCENES, Check, all_checks

QUICK = 600
SEEDS = 6
SLOW = ("Power of two", "M/G/1-PS")
"""Scenes with more requests or longer batches than a test has time for."""


def checks() -> list[Check]:
    return [check for check in all_checks(QUICK) if not check.scene.startswith(SLOW)]


@pytest.mark.parametrize("check", checks(), ids=lambda check: f"{check.scene} {check.figure}".replace(" ", "-"))
def test_a_figure_is_that_of_its_formula(check: Check) -> None:
    found = mean_interval([check.measure(seed) for seed in check.seeds(SEEDS)], 0.99)
    assert found is not None
    assert found.covers(check.exact), (found, check.exact)
    # An interval that covers anything says nothing.
    assert found.low > 0


def test_every_scene_has_a_check() -> None:
    assert len(all_checks(QUICK)) >= 2 * len(SCENES) - 5
