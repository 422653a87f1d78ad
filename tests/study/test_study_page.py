"""The pages of comparisons, sweeps and searches for capacity: the picture has the figures of the table."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from maitred import Candidate, InstanceConfig, Load, compare
from maitred.study.capacity.points import CapacityOption, KneePoint
from maitred.study.capacity.result import CapacityResult
from maitred.study.metrics import Constraint
from maitred.study.sweep.result import CandidateResult, SweepResult
from maitred.study.sweep.spec import Criteria


def picture_of(page: str) -> Any:
    return json.loads(unescape(page.split('data-scatter="')[1].split('"', maxsplit=1)[0]))


def test_a_comparison_shows_relative_differences(tmp_path: Path) -> None:
    sides = [Candidate(instance=InstanceConfig(max_num_seqs=count)) for count in (64, 4)]
    comparison = compare(*sides, workload=Load(rate=20, num_requests=60, output_tokens="50"), seeds=3)
    (tmp_path / "c.html").write_bytes(comparison.presentation().page())
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    picture = picture_of(page)
    (pairing,) = comparison.pairings
    shown = {picture["names"][int(point["y"])]: point for point in picture["groups"][0]["points"]}
    ttft = next(each for each in pairing.differences if each.metric == "ttft_mean_ms")
    assert ttft.a
    assert ttft.difference
    assert ttft.low is not None
    assert shown["TTFT mean ms"]["x"] == pytest.approx(100 * ttft.difference / ttft.a)
    assert shown["TTFT mean ms"]["low"] == pytest.approx(100 * ttft.low / ttft.a)
    assert "KV preemptions" not in shown  # 0 in A, so there is no percentage
    assert "KV preemptions" in page  # but a row of the table
    assert page.count("generic linear model, no particular GPU; 1 instance; ") == 2  # what was simulated, of each side
    assert picture["limits"] == [{"label": "no difference", "axis": "x", "at": 0}]


CRITERIA = Criteria(
    objective="cost",
    pareto=("cost", "ttft_p99_ms"),
    shown=(),
    constraints=(Constraint(metric="ttft_p99_ms", better="lower", limit=500.0),),
)


def candidate(index: int, cost: float, ttft: float, values: dict[str, Any] | None = None) -> CandidateResult:
    return CandidateResult(
        index=index,
        values=values or {"cluster.num_instances": index},
        problem="",
        figures={"cost": cost, "ttft_p99_ms": ttft, "completed_share": 1.0},
        meets_constraints=ttft <= 500,
        num_seeds_met=1,
        num_seeds=1,
    )


def test_a_sweep_shows_its_candidates_and_the_front(tmp_path: Path) -> None:
    candidates = (candidate(1, 1, 9_000), candidate(2, 2, 400), candidate(3, 3, 450), candidate(4, 4, 30))
    result = SweepResult(criteria=CRITERIA, candidates=candidates, runs=(), simulated="llama-3.1-8b on a GPU")
    (tmp_path / "s.html").write_bytes(result.presentation().page())
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert "Best: llama-3.1-8b on a GPU." in page
    picture = picture_of(page)
    groups = {group["label"]: [(point["x"], point["y"]) for point in group["points"]] for group in picture["groups"]}
    assert groups["best"] == [(2, 400)]
    assert groups["meets the constraints"] == [(3, 450), (4, 30)]
    assert groups["misses a constraint"] == [(1, 9_000)]
    assert groups["Pareto front"] == [(1, 9_000), (2, 400), (4, 30)]
    assert picture["log"] is True
    assert picture["limits"] == [{"label": "constraint", "axis": "y", "at": 500.0}]


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('\"&')"
    one = candidate(1, 1, 100, {"instance.scheduler": evil})
    (tmp_path / "s.html").write_bytes(SweepResult(criteria=CRITERIA, candidates=(one,), runs=()).presentation().page())
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert '<td data-label="TTFT p99 ms">' in page  # what a phone shows beside the figure
    assert page.count("<script>") == 2  # uPlot, and the script of the page
    assert evil[:24] in unescape(page)


def knee(rate: float, ttft: float | None, instances: int = 2) -> KneePoint:
    return KneePoint(instances=instances, rate=rate, holds=ttft is not None and ttft <= 500, figures={"ttft_p99_ms": ttft})


def test_capacity_shows_the_knee_of_the_chosen_size(tmp_path: Path) -> None:
    option = CapacityOption(
        hardware="H100",
        tensor_parallel_size=1,
        simulated="llama-3.1-8b",
        instances=2,
        gpus=2,
        cost=None,
        highest_rate=12.0,
        headroom=1.2,
        today=knee(10, 100),
        problem="",
        points=(knee(14, 4_000), knee(10, 100), knee(12, 300), knee(5, 80, instances=1), knee(20, None)),
    )
    result = CapacityResult(
        workload="1,000 requests",
        slo="TTFT ≤ 500 ms",
        constraints=("ttft_p99_ms <= 500",),
        limits=CRITERIA.constraints,
        seeds=(42,),
        tolerance=0.02,
        today=10,
        has_prices=False,
        runs=5,
        options=(option,),
    )
    (tmp_path / "k.html").write_bytes(result.presentation().page())
    page = (tmp_path / "k.html").read_text(encoding="utf-8")
    (group,) = picture_of(page)["groups"]
    assert group["label"] == "2 × H100, TP 1"
    assert [(point["x"], point["y"], point.get("hollow", False)) for point in group["points"]] == [
        (10, 100, False),
        (12, 300, False),
        (14, 4_000, True),
    ]
    assert "How many GPUs: 1,000 requests" in page
