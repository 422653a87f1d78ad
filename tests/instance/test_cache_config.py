"""The prefix cache of an instance: what it is told of those it serves, and what is said about its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from instance_timeline import instance, request, run

from maitred.instance import InstanceConfig
from maitred.kv import PromptTokenIds
from maitred.kv.block_hashes import request_block_hashes


@pytest.mark.parametrize(("eviction", "kept"), [("lru", [1, 2]), ("priority", [0, 2])])
def test_the_priority_of_a_request_stays_with_its_blocks(eviction: str, kept: list[int]) -> None:
    """Four blocks hold two of these prompts. The first has priority: when the third comes, the second goes."""
    engine = instance(
        enable_prefix_caching=True,
        prefix_cache="radix",
        radix_eviction_policy=eviction,
        total_kv_blocks=4,
        block_size_in_tokens=4,
    )
    requests = [
        request(number, prompt=8, priority=priority, prefix=PromptTokenIds(tuple(range(10 * number, 10 * number + 8))))
        for number, priority in enumerate([0.5, 0.0, 0.0])
    ]
    for asked in requests:
        engine.enqueue(asked, output_tokens=1, now=1000 * asked.id)
        run(engine)
    cache = engine.prefix_cache
    assert cache is not None
    assert [asked.id for asked in requests if cache.num_cached_blocks(request_block_hashes(asked, 4)) == 2] == kept


@pytest.mark.parametrize(
    ("said", "warnings"),
    [
        ({}, []),
        ({"prefix_cache": "radix"}, ["prefix_cache radix has no effect without enable_prefix_caching"]),
        (
            {"enable_prefix_caching": True, "radix_eviction_policy": "slru"},
            ["radix_eviction_policy slru has no effect without prefix_cache radix"],
        ),
        ({"enable_prefix_caching": True, "prefix_cache": "radix", "radix_eviction_policy": "slru"}, []),
    ],
)
def test_what_is_said_of_another_cache_is_reported(said: dict[str, Any], warnings: list[str]) -> None:
    config = InstanceConfig(**said)
    assert config.warnings(prefix_cache=config.enable_prefix_caching) == warnings


@pytest.mark.parametrize(
    ("said", "warnings"),
    [
        ({}, ["preemption_policy priority goes by what clients say, without priority_policy; of those that say none LATEST"]),
        ({"priority_policy": "static-slo-class"}, []),
        ({"scheduler": "sjf", "priority_policy": "slo-based"}, []),
        ({"enable_priority_scheduling": True}, []),
        (
            {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True},
            ["preemption_policy priority preempts low numbers, which schedule_low_priority_values_first puts first"],
        ),
        ({"priority_policy": "constant"}, ["ALIKE"]),
        ({"scheduler": "priority-fcfs"}, ["priority-fcfs with constant is fcfs", "ALIKE"]),
    ],
)
def test_victims_by_a_priority_that_all_share_are_reported(said: dict[str, Any], warnings: list[str]) -> None:
    config = InstanceConfig(preemption_policy="priority", **said)
    latest = "the latest to arrive gives way"
    alike = f"preemption_policy priority has nothing to go by: all scores are alike; {latest}"
    expected = [line.replace("ALIKE", alike).replace("LATEST", latest) for line in warnings]
    assert config.warnings(prefix_cache=False) == expected
    assert not any("preemption" in line for line in InstanceConfig(**said).warnings(prefix_cache=False))
