"""Recorded runs of BLIS, request by request and to the microsecond, with time skipping and without."""

from __future__ import annotations

from pathlib import Path

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
