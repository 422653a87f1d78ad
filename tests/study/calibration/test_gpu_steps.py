"""The steps measured on real GPUs (`gpu_steps`), beside the latency models: the figures of docs/accuracy.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "bench"))

from gpu_steps_table import KINDS, median_error, times_of  # noqa: E402  (bench is no package)

MEDIANS = {
    ("h100", "roofline"): [10, 38, 10, 31],
    ("h200", "roofline"): [7, 35, 18, 26],
    ("h100", "trained-physics"): [76, 84, 20, 70],
    ("h200", "trained-physics"): [78, 85, 9, 75],
}
"""Errors in %, in the order of `KINDS`."""


@pytest.mark.parametrize(("gpu", "model"), MEDIANS)
def test_errors_are_those_of_the_documentation(gpu: str, model: str) -> None:
    measured = json.loads((ROOT / f"tests/vectors/gpu_steps/{gpu}.json").read_text(encoding="utf-8"))
    steps = measured["steps"]
    times = times_of(model, gpu.upper(), steps)
    assert times is not None
    assert [round(median_error(times, steps, chosen)) for chosen in KINDS.values()] == MEDIANS[gpu, model]
