"""What vLLM's own scheduler did, step by step, comes out here too, and the runner can fail."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from vllm_conformance.runner import CasesError, differences, report
from vllm_conformance.workload import load_cases

VECTORS = Path(__file__).parents[1] / "vectors"
FILES = [VECTORS / f"vllm_{name}.json.gz" for name in ("v1", "v3", "v4_sjf", "v5", "modes", "0.33_modes")]
CASES = {case.get("name", path.name): case for path in FILES for case in load_cases(path)}


@pytest.mark.parametrize("name", CASES)
def test_every_step_comes_out_as_recorded(name: str) -> None:
    assert differences(CASES[name]) == []


def test_the_cases_have_every_mode_and_what_is_rare() -> None:
    configs = [case["recorded"]["config"] for case in CASES.values()]
    for key, values in {
        "policy": {"fcfs", "priority"},
        "async_scheduling": {True, False},
        "enable_prefix_caching": {True, False},
        "enable_chunked_prefill": {True, False},
        "scheduler_reserve_full_isl": {True, False},
        "watermark": {0.0, 0.05, 0.2},
    }.items():
        assert {config[key] for config in configs} == values
    records = [case["recorded"] for case in CASES.values()]
    ends = {request["finish_reason"] for record in records for request in record["requests"].values()}
    assert ends == {"length", "stop", "abort", None}  # None: nothing could be scheduled any more
    assert any(record.get("stuck") for record in records)
    assert sum(len(step["preempted"]) for record in records for step in record["steps"]) > 700
    assert any(step["preempted"] and not step["total"] for record in records for step in record["steps"])


def test_the_cases_of_033_come_out_by_its_own_rules_alone() -> None:
    cases = load_cases(VECTORS / "vllm_0.33_modes.json.gz")
    assert len(cases) > 30
    for case in cases:
        assert case["recorded"]["vllm_version"] == "0.33.0"
        other = deepcopy(case)
        other["recorded"]["vllm_version"] = "0.32.0"
        assert differences(other), case["name"]


def test_the_report_counts_them() -> None:
    lines: list[str] = []
    assert report(FILES[:2], lines.append) == 0
    assert lines == ["2 passed, 0 failed"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_scheduled_tokens", {"q0": 2}),
        ("new", ["q1"]),
        ("preempted", ["q0"]),
        ("finished_before", ["q0"]),
        ("running", []),
        ("waiting", ["q1"]),
        ("free_blocks", 0),
        ("t", 9.0),
    ],
)
def test_a_wrong_field_is_named_with_its_step(field: str, value: Any, tmp_path: Path) -> None:
    case, path, lines = deepcopy(CASES["v1"]), tmp_path / "case.json", list[str]()
    was = case["recorded"]["steps"][3][field]
    case["recorded"]["steps"][3][field] = value
    path.write_text(json.dumps(case))
    assert report([path], lines.append) == 1
    assert lines == [f"case.json v1: step 3: {field}: {value} expected, {was} got", "0 passed, 1 failed"]


def test_a_wrong_request_or_number_of_steps_counts_too() -> None:
    case = deepcopy(CASES["v1"])
    case["recorded"]["requests"]["q3"]["first_token"] = 1.5
    del case["recorded"]["steps"][-1]
    assert differences(case)[0].startswith("end: 460 steps expected, 461 made")
    assert any(line.startswith("request q3: first_token: 1.5 expected") for line in differences(case))


def test_what_is_no_file_of_cases_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    for text in ("[]", "{", '{"workload": {}}', '{"cases": [{"name": "a"}]}'):
        path.write_text(text)
        with pytest.raises(CasesError, match=r"cases\.json holds"):
            load_cases(path)
    with pytest.raises(CasesError, match="No such file"):
        load_cases(tmp_path / "nowhere.json")
    path.with_suffix(".gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(CasesError, match="holds no cases"):
        load_cases(path.with_suffix(".gz"))


def test_a_key_that_is_unknown_fails_its_case() -> None:
    case = deepcopy(CASES["v1"])
    case["workload"]["config"]["warp"] = 9
    assert differences(case) == ["CasesError: unknown keys in config: warp"]
