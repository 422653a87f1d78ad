"""SGLang's recorded radix cache traces, played against ours, as `python -m tests.conformance sglang FILE` plays them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sglang_radix import run_case

TRACES = Path(__file__).parent.parent / "vectors" / "sglang_radix.jsonl.gz"


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    with gzip.open(TRACES, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_recorded_trace_comes_out_as_recorded(cases: list[dict[str, Any]]) -> None:
    failed = {case["id"]: problems for case in cases if (problems := run_case(case))}
    assert not failed
    assert Counter(case["eviction_policy"] for case in cases) == {"lru": 50, "fifo": 50, "mru": 50, "slru": 50}


def test_a_cache_that_evicts_otherwise_is_found_out(cases: list[dict[str, Any]]) -> None:
    problems = run_case(next(case for case in cases if case["eviction_policy"] == "lru") | {"eviction_policy": "mru"})
    assert any("(evict): cached_after" in problem for problem in problems)


def test_a_policy_takes_its_parameters_as_recorded(cases: list[dict[str, Any]]) -> None:
    """With a threshold of 1 everything is protected, and what was used longest ago goes first."""
    lru = next(case for case in cases if case["eviction_policy"] == "lru")
    for config in ({"protected_threshold": 1}, '{"protected_threshold": 1}'):
        assert run_case(lru | {"eviction_policy": "slru", "eviction_config": config}) == []
    assert any(run_case(case | {"eviction_policy": "slru"}) for case in cases if case["eviction_policy"] == "lru")
