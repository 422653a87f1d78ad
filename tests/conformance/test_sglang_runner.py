"""What was recorded from SGLang comes out here too, and the runner can fail."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from sglang_conformance.runner import CasesError, report, run

VECTORS = Path(__file__).parents[1] / "vectors"
POLICIES, QUEUE_FULL = VECTORS / "sglang_policies.jsonl.gz", VECTORS / "sglang_queue_full.jsonl.gz"
PREFILL, RETRACTION = VECTORS / "sglang_prefill.jsonl.gz", VECTORS / "sglang_retraction.jsonl.gz"
RATIO, DELAYER = VECTORS / "sglang_new_token_ratio.jsonl.gz", VECTORS / "sglang_prefill_delayer.jsonl.gz"


def first(path: Path, index: int = 0) -> dict[str, object]:
    with gzip.open(path) as file:
        case: dict[str, object] = json.loads(file.readlines()[index])
    return case


@pytest.mark.parametrize(
    ("path", "cases"), [(POLICIES, 31), (QUEUE_FULL, 150), (PREFILL, 120), (RETRACTION, 150), (RATIO, 50), (DELAYER, 100)]
)
def test_the_recorded_cases_come_out_as_recorded(path: Path, cases: int) -> None:
    lines: list[str] = []
    assert report([path], lines.append) == 0
    assert lines == [f"{cases} passed, 0 failed"]


def test_the_sample_of_policies_exercises_what_they_differ_in() -> None:
    with gzip.open(POLICIES) as file:
        sample = [json.loads(line) for line in file]
    assert {case["page_size"] for case in sample} == {1, 4, 16, 64}
    assert -1 in {case["check_threshold"] for case in sample}
    assert all(len(case["expected"]) == 14 for case in sample)
    assert any(len(case["requests"]) > 128 for case in sample)
    for variant in ("lpm", "hrrn", "dfs-weight", "shortest-prefill-first"):
        assert any(case["expected"][variant].get("deprioritized") for case in sample)


def test_a_mismatch_is_one_line_and_fails_the_run(tmp_path: Path) -> None:
    case = first(QUEUE_FULL)
    case["expected"]["waiting_after"] = ["none of them"]  # type: ignore[index]
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(case) + "\n")
    lines: list[str] = []
    assert report([path, QUEUE_FULL], lines.append) == 1
    assert lines[0].startswith("cases.jsonl queue_full 0: waiting_after: ['none of them'] expected, ")
    assert lines[-1] == "150 passed, 1 failed"


def test_an_order_that_differs_is_reported_with_the_position(tmp_path: Path) -> None:
    case = first(POLICIES, 20)
    case["expected"]["lof"]["order"].reverse()  # type: ignore[index]
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(case))
    (result,) = run([path])
    (failure,) = result.failures
    assert failure.startswith("lof: from position 0 on, [")


def test_what_nothing_plays_is_skipped_and_not_passed(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"id": 7, "kind": "lora"}\n{"id": 8, "kind": "hicache"}\n')
    lines: list[str] = []
    assert report([path], lines.append) == 1  # nothing played is no success
    assert lines == [
        "cases.jsonl: 1 cases of kind lora SKIPPED: nothing here plays them yet",
        "cases.jsonl: 1 cases of kind hicache SKIPPED: nothing here plays them yet",
        "0 passed, 0 failed",
    ]


def test_a_file_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text("{}\n")
    with pytest.raises(CasesError, match=r"cases\.jsonl, line 1: .*missing required field `id`"):
        list(run([path]))
    with pytest.raises(CasesError, match="No such file"):
        list(run([tmp_path / "nowhere.jsonl"]))
