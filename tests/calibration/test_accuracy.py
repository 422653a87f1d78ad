"""Four runs of vLLM on real GPUs, predicted from the layer profiles of these GPUs: the figures of docs/accuracy.md.

The vectors hold what the prediction needs of `casys-kaist/LLMServingSim` (MIT), see tests/vectors/README.md.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from maitred.calibration import compiling
from maitred.calibration.compiling import graph_sizes
from maitred.calibration.folder import read_folder
from maitred.calibration.timelines import jobs_of, read_timeline
from maitred.calibration.validation import Validation, peer_errors, validate
from maitred.sim import simulate

RUNS = Path(__file__).parents[1] / "vectors" / "vllm_timelines"
DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy.md"
FITTED = "RTXPRO6000_Qwen3-32B"
FIGURES = {  # mean and worst error in %, of TTFT, TPOT and E2E at mean, p50, p90 and p99
    "RTX4090_Llama-3.1-8B": (1.3, 2.5),
    "RTXPRO6000_Llama-3.1-8B": (1.6, 6.0),
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": (1.4, 5.5),
    FITTED: (0.2, 0.6),
}


@lru_cache
def predicted(name: str, overhead_us: float | None = None) -> Validation:
    folder = read_folder(RUNS / name)
    instance = folder.instance() if overhead_us is None else folder.instance(overhead_us)
    return validate(name, read_timeline(folder.requests), instance, RUNS / name / "peer_simulator_error.txt")


@pytest.mark.parametrize("name", FIGURES)
def test_errors_are_those_of_the_documentation(name: str) -> None:
    mean, worst = FIGURES[name]
    found = predicted(name)

    assert found.requests == 300
    assert 100 * found.mean_error == pytest.approx(mean, abs=0.051)
    assert 100 * found.worst_error == pytest.approx(worst, abs=0.051)
    assert found.mean_error <= 0.03
    assert found.worst_error <= 0.08


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (FITTED, "Qwen3-32B"),
        ("RTXPRO6000_Llama-3.1-8B", "Llama-3.1-8B, PRO 6000"),
        ("RTX4090_Llama-3.1-8B", "Llama-3.1-8B, 4090"),
        ("RTXPRO6000_Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
    ],
)
def test_the_documentation_has_the_error_of_every_statistic(name: str, title: str) -> None:
    table = DOCUMENT.read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(title)} (\| [+-]\d.*)$", table, re.MULTILINE)
    written = [float(number) for number in re.findall(r"[+-]\d+\.\d", row)]

    assert written == pytest.approx([100 * line.error for line in predicted(name).lines], abs=0.051)


def test_the_documentation_has_what_profiles_alone_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """No constant, and every sequence as long as the others: what is left when nothing comes from the runs themselves."""
    monkeypatch.setattr(compiling, "LONGEST", 1.0)
    monkeypatch.setattr(compiling, "UNEVEN", 0.0)
    order = [FITTED, "RTXPRO6000_Llama-3.1-8B", "RTX4090_Llama-3.1-8B", "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507"]
    found = [predicted.__wrapped__(name, 0.0) for name in order]
    (row,) = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| **profiles alone**")]

    errors = [100 * error for run in found for error in (run.mean_error, run.worst_error)]
    assert [float(number) for number in re.findall(r"\d+\.\d", row)] == pytest.approx(errors, abs=0.051)


def mean_latency_error(overhead_us: float | None = None) -> float:
    return next(line.error for line in predicted(FITTED, overhead_us).lines if (line.metric, line.statistic) == ("e2e", "mean"))


def test_the_one_constant_makes_the_mean_latency_of_one_run_right() -> None:
    assert abs(mean_latency_error()) < 0.0003
    assert mean_latency_error(0.0) < -0.005


def test_without_planning_ahead_first_tokens_come_too_early() -> None:
    folder = read_folder(RUNS / "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507")
    instance = replace(folder.instance(), async_scheduling=False)
    found = validate("", read_timeline(folder.requests), instance)

    assert next(line.error for line in found.lines if (line.metric, line.statistic) == ("ttft", "p50")) < -0.15


def test_skipping_steps_changes_nothing() -> None:
    folder = read_folder(RUNS / "RTX4090_Llama-3.1-8B")
    jobs, instance = jobs_of(read_timeline(folder.requests)), folder.instance()
    skipping = simulate(jobs, instance=instance)
    singly = simulate(jobs, instance=replace(instance, step_by_step=True))

    assert skipping.preemptions.sum() > 100  # memory is short in this run
    for name in ("queued", "first_token", "finished", "cached_tokens", "preemptions"):
        assert (getattr(skipping, name) == getattr(singly, name)).all()


def test_the_peers_figures_are_read() -> None:
    found = peer_errors(RUNS / FITTED / "peer_simulator_error.txt")

    assert found["ttft", "p50"] == pytest.approx(41397.0 / 40701.8 - 1)
    assert len(found) == 12


def test_sizes_of_cuda_graphs() -> None:
    assert graph_sizes(16) == [1, 2, 4, 8, 16]
    assert graph_sizes(512)[-3:] == [480, 496, 512]
    assert len(graph_sizes(256)) == 35
