"""The samples that come with maitred."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.workload import sample_jobs, sample_names

ROOT = Path(__file__).parents[2]


def test_mixed_is_what_its_script_makes() -> None:
    """Other bytes would mean that drawing changed, and every seeded workload with it."""
    make = runpy.run_path(str(ROOT / "tools" / "make_samples.py"))
    assert (make["SAMPLES"] / "mixed.csv").read_text(encoding="utf-8").splitlines() == list(make["mixed_lines"]())


def test_mixed_is_a_minute_of_chats_over_waves_of_bulk_that_two_engines_of_16_slots_cannot_hold() -> None:
    jobs = list(sample_jobs("mixed"))
    arrivals = {cls: [j.request.arrival for j in jobs if j.request.priority_class is cls] for cls in PriorityClass}
    assert set(sample_names()) == {"mixed"}
    assert 55 * SECOND < jobs[-1].request.arrival < 60 * SECOND
    assert 90 < len(arrivals[PriorityClass.INTERACTIVE]) < 150
    assert sum(1 for at in arrivals[PriorityClass.BULK] if at < 4 * SECOND) > 32
    assert sum(job.output_tokens for job in jobs) / 60 < 1_500


def test_an_unknown_sample_suggests_one_that_is_there() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mixed'"):
        sample_jobs("mixd")
