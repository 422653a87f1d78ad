"""Four runs of vLLM on real GPUs, predicted from the layer profiles of these GPUs: the figures of docs/accuracy.md.

The vectors hold the part of `casys-kaist/LLMServingSim` (MIT) that the prediction needs, see tests/vectors/README.md.
"""

from __future__ import annotations

import re
import shutil
from functools import lru_cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from maitred.core.contracts import UNIFORM_CONTEXTS
from maitred.instance import engine_core
from maitred.sim import simulate
from maitred.study.calibration.layer_profile import graph_sizes
from maitred.study.calibration.measured_run import read_measured_run
from maitred.study.calibration.measurements import read_timeline, timeline_jobs
from maitred.study.calibration.validation import Validation, peer_errors, validate

RUNS = Path(__file__).parents[2] / "vectors" / "vllm_timelines"
DOCUMENT = Path(__file__).parents[3] / "docs" / "accuracy.md"
FITTED = "RTXPRO6000_Qwen3-32B"
FIGURES = {  # mean and worst error in %, of TTFT, TPOT and E2E at mean, p50, p90 and p99
    "RTX4090_Llama-3.1-8B": (1.5, 3.9),
    "RTXPRO6000_Llama-3.1-8B": (1.8, 7.1),
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": (2.0, 6.4),
    FITTED: (0.2, 0.7),
}
ORDER = (FITTED, "RTXPRO6000_Llama-3.1-8B", "RTX4090_Llama-3.1-8B", "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507")
"""The runs in the order of the columns of the table of decisions."""


@lru_cache
def predicted(name: str, overhead_us: float | None = None) -> Validation:
    folder = read_measured_run(RUNS / name)
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


def documented(row: str) -> list[float]:
    """Return the figures of one row of the table of decisions, without the constant."""
    (line,) = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row}")]
    return [float(number) for number in re.findall(r"\d+\.\d", line.removeprefix(f"| {row}"))]


def nothing_fitted() -> list[float]:
    found = [predicted.__wrapped__(name, 0.0) for name in ORDER]
    return [100 * error for run in found for error in (run.mean_error, run.worst_error)]


def test_the_documentation_has_what_comes_of_profiles_alone() -> None:
    assert documented("**nothing fitted** (0 µs)") == pytest.approx(nothing_fitted(), abs=0.051)


def test_the_documentation_has_what_comes_of_it_if_all_lengths_were_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core, "context_spread", lambda _contexts: UNIFORM_CONTEXTS)

    assert documented("all lengths equal, **nothing fitted** (0 µs)") == pytest.approx(nothing_fitted(), abs=0.051)


@pytest.mark.parametrize("name", ORDER)
def test_nothing_of_the_requests_is_in_what_predicts_them(name: str, tmp_path: Path) -> None:
    shutil.copytree(RUNS / name, tmp_path / name, ignore=shutil.ignore_patterns("requests.csv"))

    assert read_measured_run(tmp_path / name).instance() == read_measured_run(RUNS / name).instance()


def mean_latency_error(overhead_us: float | None = None) -> float:
    return next(line.error for line in predicted(FITTED, overhead_us).lines if (line.metric, line.statistic) == ("e2e", "mean"))


def test_the_one_constant_makes_the_mean_latency_of_one_run_right() -> None:
    assert abs(mean_latency_error()) < 0.0003
    assert mean_latency_error(0.0) < -0.005


def test_without_planning_ahead_first_tokens_come_too_early() -> None:
    folder = read_measured_run(RUNS / "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507")
    instance = replace(folder.instance(), async_scheduling=False)
    found = validate("", read_timeline(folder.requests), instance)

    assert next(line.error for line in found.lines if (line.metric, line.statistic) == ("ttft", "p50")) < -0.15


def test_skipping_steps_changes_nothing() -> None:
    folder = read_measured_run(RUNS / "RTX4090_Llama-3.1-8B")
    jobs, instance = timeline_jobs(read_timeline(folder.requests)), folder.instance()
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
