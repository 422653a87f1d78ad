"""KV offloading: evicted blocks come back from the host for bytes / bandwidth, by hand, and the same step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import resolve_instance
from maitred.instance.kv_offload import KvOffloadConfig
from maitred.sim import Results, simulate
from maitred.workload import Job
from maitred.workload.prefix_keys import GroupPrefixKeys

GIB = 1 << 30


def engine(blocks: int = 0, *, total: int = 12, **keys: Any) -> InstanceConfig:
    """Return an instance with 100 µs per prefill token and 1 ms per step; a block of the host takes 16 · 1,000 B / 1 GB/s."""
    offload = KvOffloadConfig(host_gib=blocks * 16_000 / GIB, bandwidth_gb_s=1.0, kv_bytes_per_token=1000.0)
    stated: dict[str, Any] = {"latency": LinearLatency((1000, 100, 0)), "total_kv_blocks": total, **keys}
    return InstanceConfig(enable_prefix_caching=True, kv_offload=offload, **stated)


def prompt(number: int, at: int, group: int, tokens: int = 160) -> Job:
    keys = GroupPrefixKeys(group=group, shared_tokens=tokens, owner=number, tokens=tokens)
    return Job(Request(id=number, arrival=at, prompt_tokens=tokens, prefix=keys), 1)


def test_a_hit_in_the_host_takes_bytes_by_bandwidth() -> None:
    """Of 12 blocks a prompt takes 10, so the second evicts 8 of the first, its end first. The first then finds 2 on the GPU and
    7 in the host, as the last block is computed anyway: 7 · 16 µs of loading and 16 tokens, in place of 128 tokens."""
    jobs = [prompt(0, 0, 1), prompt(1, SECOND, 2), prompt(2, 2 * SECOND, 1)]
    without, with_host = simulate(jobs, None, engine()), simulate(jobs, None, engine(100))
    took = [(each.first_token - each.arrival).tolist() for each in (without, with_host)]
    assert took[0] == [1000 + 16_000, 1000 + 16_000, 1000 + (160 - 32) * 100]
    assert took[1] == [1000 + 16_000, 1000 + 16_000, 1000 + 7 * 16 + 16 * 100]
    assert without.cached_tokens.tolist() == [0, 0, 32]
    assert with_host.cached_tokens.tolist() == [0, 0, 144]
    assert with_host.instances[0].fetched_blocks == 7
    assert with_host.instances[0].busy == sum(took[1])


def test_a_scheduler_that_plans_ahead_loads_as_well() -> None:
    """The second answer stops by itself, so the token that is computed in vain opens a block, which evicts a ninth of the first
    prompt: 1 is found on the GPU and 8 in the host."""
    jobs = [prompt(0, 0, 1), prompt(1, SECOND, 2), prompt(2, 2 * SECOND, 1)]
    results = simulate(jobs, None, engine(100, flavour="vllm", async_scheduling=True))
    assert results.cached_tokens.tolist() == [0, 0, 144]
    assert results.first_token[2] - results.arrival[2] == 1000 + 8 * 16 + 16 * 100


def test_a_small_host_keeps_what_was_evicted_last() -> None:
    """Evicted are the blocks 10, 9, ... 3 of the first prompt, and the host keeps the last 4 of these: blocks 6 to 3."""
    jobs = [prompt(0, 0, 1), prompt(1, SECOND, 2), prompt(2, 2 * SECOND, 1)]
    results = simulate(jobs, None, engine(4))
    assert results.cached_tokens.tolist() == [0, 0, 32 + 64]
    assert results.instances[0].fetched_blocks == 4


def crowd(seed: int) -> Iterator[Job]:
    draw = Random(seed)
    for i in range(60):
        tokens = draw.randrange(1, 150)
        keys = GroupPrefixKeys(group=draw.randrange(1, 7), shared_tokens=tokens, owner=i, tokens=tokens)
        yield Job(Request(id=i, arrival=i * 2500, prompt_tokens=tokens, prefix=keys), draw.randrange(1, 60))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    blocks=st.sampled_from([3, 20, 500]),
    total=st.sampled_from([16, 30]),
    budget=st.sampled_from([32, 512]),
    full=st.booleans(),
    flavour=st.sampled_from([{}, {"flavour": "vllm", "async_scheduling": True}]),
)
def test_skipping_changes_nothing(seed: int, blocks: int, total: int, budget: int, full: bool, flavour: dict[str, Any]) -> None:
    def run(**keys: Any) -> Results:
        limits = {"max_num_seqs": 5, "max_num_batched_tokens": budget, "scheduler_reserve_full_isl": full}
        config = engine(blocks, total=total, **limits, **flavour, **keys)
        return simulate(crowd(seed), None, config)

    skipped, stepped = run(), run(step_by_step=True)
    for name in ("first_token", "finished", "cached_tokens", "preemptions"):
        assert np.array_equal(getattr(skipped, name), getattr(stepped, name)), name
    assert skipped.instances[0].fetched_blocks == stepped.instances[0].fetched_blocks


def test_bytes_per_token_are_those_of_the_model() -> None:
    """32 layers, 8 KV heads of 128, keys and values, 2 bytes each: 131,072 bytes."""
    config = InstanceConfig(
        model="llama-3.1-8b", latency="roofline", enable_prefix_caching=True, kv_offload=KvOffloadConfig(host_gib=64.0)
    )
    offload = resolve_instance(config).kv_offload
    assert offload.kv_bytes_per_token == 131_072
    assert offload.num_blocks(16) == 64 * GIB // (16 * 131_072)
    assert offload.time_per_block(16) == pytest.approx(16 * 131_072 / 25_000)


def test_what_it_does_not_go_with_is_named() -> None:
    host = KvOffloadConfig(host_gib=1.0)
    for keys, what in (
        ({}, "no prefix cache"),
        ({"enable_prefix_caching": True, "prefix_cache": "radix"}, "prefix_cache radix with flavour None"),
        ({"flavour": "sglang", "prefix_cache": "blocks"}, "prefix_cache blocks with flavour sglang"),
        ({"enable_prefix_caching": True, "batching": "max-utilization"}, "batching max-utilization"),
        ({"enable_prefix_caching": True, "flavour": "trtllm"}, "flavour trtllm"),
    ):
        with pytest.raises(ValueError, match=f"kv_offload is not for {what}"):
            InstanceConfig(kv_offload=host, **keys)
    with pytest.raises(ConfigError, match="the size of the KV of a token is not known"):
        simulate((), None, InstanceConfig(enable_prefix_caching=True, kv_offload=host))
    with pytest.raises(ValueError, match="bandwidth_gb_s must be above 0"):
        KvOffloadConfig(bandwidth_gb_s=0.0)
