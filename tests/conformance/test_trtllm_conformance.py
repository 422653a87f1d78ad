"""What was recorded from TensorRT-LLM's tests comes out here too, and the runner can fail."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from trtllm_conformance.runner import CHECKS, CasesError, cases, failures, report

VECTORS = Path(__file__).parents[1] / "vectors" / "trtllm_cases.json.gz"
CASES = {case["id"]: case for case in cases(VECTORS)}


@pytest.mark.parametrize("name", CASES)
def test_it_comes_out_as_recorded(name: str) -> None:
    assert failures(CASES[name]) == []


def test_all_kinds_are_played() -> None:
    kinds = Counter(case["kind"] for case in CASES.values())
    assert kinds.keys() == CHECKS.keys()
    assert sum(kinds.values()) == 211


def test_the_report_counts_them() -> None:
    lines: list[str] = []
    assert report([VECTORS], lines.append) == 0
    assert lines == ["211 passed, 0 failed"]


def changed(kind: str) -> dict[str, Any]:
    """Return a case of `kind` whose expectation is wrong in one number or word."""
    case = deepcopy(next(case for case in CASES.values() if case["kind"] == kind and case["expected"]))
    expected: Any = case["expected"]
    if kind == "capacity_trace":
        expected["finish_step"] = {name: step + 1 for name, step in expected["finish_step"].items()}
    elif kind == "block_formula":
        case["expected"] = expected + 1
    elif kind == "microbatch_trace":
        expected["events"][0]["context_pos_after"]["0"] += 1
    elif kind == "chunking_direct":
        expected["positions_after_each_step"][0][0] += 1
    else:
        name, value = next((name, value) for name, value in expected.items() if isinstance(value, list) and value)
        expected[name] = value[:-1]
    return case


@pytest.mark.parametrize("kind", CHECKS)
def test_a_wrong_number_fails_its_case_alone(kind: str, tmp_path: Path) -> None:
    path, lines = tmp_path / "cases.json", list[str]()
    path.write_text(json.dumps({"cases": [changed(kind), CASES["blocks/reuse_cost_middle"]]}))
    assert report([path], lines.append) == 1
    assert " expected, " in lines[0]
    assert lines[-1] == "1 passed, 1 failed"


def test_a_step_that_nothing_is_recorded_of_counts_too() -> None:
    case = deepcopy(CASES["cap/SimpleDoesntFitMaxUtilization/MAX_UTILIZATION"])
    del case["expected"]["upstream_segments"]
    case["expected"]["replayed_events"] = [event for event in case["expected"]["replayed_events"] if event["step"] != 41]
    assert "step 41: nothing new expected, [0] scheduled, [1] paused" in failures(case)


def test_what_is_no_file_of_cases_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    for text in ("[]", "{", '{"cases": [{"id": 1}]}', '{"cases": [3]}'):
        path.write_text(text)
        with pytest.raises(CasesError, match=r"cases\.json holds"):
            cases(path)
    with pytest.raises(CasesError, match="No such file"):
        cases(tmp_path / "nowhere.json")
    path.with_suffix(".gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(CasesError, match="holds no cases"):
        cases(path.with_suffix(".gz"))


def test_what_nothing_plays_is_skipped_and_not_passed(tmp_path: Path) -> None:
    path, lines = tmp_path / "cases.json", list[str]()
    path.write_text('{"cases": [{"id": "a", "kind": "telepathy"}]}')
    assert report([path], lines.append) == 1
    assert lines == ["1 cases of kind telepathy SKIPPED: nothing here plays them yet", "0 passed, 0 failed"]
