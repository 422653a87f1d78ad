"""The ranks that SGLang's HRRN experiment recorded, in a shorter run of the scene of bench/field_hrrn.py (docs/evidence.md)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from field_hrrn import SCENE, Ttft, simulated


@pytest.fixture(scope="module")
def found() -> dict[str, Ttft]:
    return simulated([42], replace(SCENE, requests=1500))


def test_hrrn_has_the_least_mean_and_fcfs_the_most(found: dict[str, Ttft]) -> None:
    for cache_first in ("lpm", "dfs-weight"):
        assert found["hrrn"].mean < 0.95 * found[cache_first].mean
        assert found[cache_first].mean < 0.8 * found["fcfs"].mean


def test_cached_prefixes_first_more_than_doubles_the_tail(found: dict[str, Ttft]) -> None:
    for cache_first in ("lpm", "dfs-weight"):
        assert found[cache_first].p99 > 2 * found["fcfs"].p99
        assert found["hrrn"].p99 < 0.9 * found[cache_first].p99


def test_all_three_serve_more_than_fcfs(found: dict[str, Ttft]) -> None:
    for policy in ("lpm", "dfs-weight", "hrrn"):
        assert found[policy].input_rate > 1.1 * found["fcfs"].input_rate
