"""Recorded runs of BLIS, request by request and to the microsecond, with time skipping and without."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blis_conformance.runner import load, report, run_case

VECTORS = Path(__file__).parents[1] / "vectors" / "blis"
CASES = {case.name: case for case in load(VECTORS / "cases.jsonl.gz")}


@pytest.mark.parametrize("name", CASES)
def test_every_request_comes_out_as_recorded(name: str) -> None:
    assert run_case(CASES[name], VECTORS / "traces") == []


@pytest.mark.parametrize(
    "name", ["n_kvpressure_mixclass_priority", "n_timeouts", "n_route_w_default_prefix", "s_horizon_cut", "n_cputier"]
)
def test_step_by_step_it_is_the_same(name: str) -> None:
    assert run_case(CASES[name], VECTORS / "traces", step_by_step=True) == []


def test_all_kinds_of_cases_are_played() -> None:
    assert len(CASES) == 41
    assert {case.config.latency_model.name for case in CASES.values()} == {"blackbox", "roofline", "trained-physics"}
    assert [name for name, case in CASES.items() if case.config.kv_cpu_tier is not None] == ["n_cputier"]


def test_the_runner_can_fail(tmp_path: Path) -> None:
    case = CASES["s_ties_fcfs"]
    first = case.expected.requests[0]
    wrong = msgspec.structs.replace(first, ttft_us=first.ttft_us + 1)
    changed = msgspec.structs.replace(case.expected, requests=[wrong, *case.expected.requests[1:]])
    (tmp_path / "traces").symlink_to(VECTORS / "traces")
    path = tmp_path / "cases.jsonl"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(case, expected=changed)))
    said: list[str] = []
    assert report([path], said.append) == 1
    assert said[-1] == "0 passed, 1 failed"
    assert any(f"ttft_us {first.ttft_us} instead of {first.ttft_us + 1}" in line for line in said)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda config: config.update(speculative=True), "unknown field `speculative`"),
        (lambda config: config["routing"].update(hedge=2), "unknown field `hedge`"),
        (lambda config: config["admission"].update(tenant_budgets={}), "admission parameters ['tenant_budgets']"),
        (lambda config: config.update(latency_model={"name": "crossmodel"}), "latency model crossmodel"),
        (lambda config: config.update(scheduler="lottery"), "unknown scheduler 'lottery'"),
        (lambda config: config["routing"].update(policy="hash"), "unknown routing policy 'hash'"),
    ],
)
def test_what_nothing_knows_is_a_failure_of_that_case_alone(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], error: str
) -> None:
    (tmp_path / "traces").symlink_to(VECTORS / "traces")
    with gzip.open(VECTORS / "cases.jsonl.gz") as file:
        lines = {case["name"]: case for case in map(msgspec.json.decode, file)}
    good, strange = lines["s_ties_fcfs"], lines["n_fcfs_ties"]
    change(strange["config"])
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(case) for case in (strange, good)))
    said: list[str] = []
    assert report([path], said.append) == 1
    assert error in said[1]
    assert said[-1] == "1 passed, 1 failed"
