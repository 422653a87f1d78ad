"""SGLang's HiCache: when blocks are copied to the host, what a load takes, by hand, and the same step by step."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.kv_offload import KvOffloadConfig
from maitred.kv import RadixCache
from maitred.kv.radix_host_tier import HITS_TO_WRITE, RadixHostTier
from maitred.sim import Results, simulate
from maitred.workload import Job
from maitred.workload.prefix_keys import GroupPrefixKeys

GIB = 1 << 30


def engine(policy: str, blocks: int = 100, *, total: int = 14, gb_s: float = 1.0, **keys: Any) -> InstanceConfig:
    """Return an instance with 100 µs per prefill token and 1 ms per step; 14 blocks, as SGLang keeps a block and a token free.
    A block of the host takes 16 · 1,000 B / 1 GB/s = 16 µs."""
    host = KvOffloadConfig(
        host_gib=blocks * 16_000 / GIB,
        bandwidth_gb_s=gb_s,
        kv_bytes_per_token=1000.0,
        write_policy=policy,  # type: ignore[arg-type]
    )
    stated: dict[str, Any] = {"latency": LinearLatency((1000, 100, 0)), "total_kv_blocks": total, **keys}
    return InstanceConfig(flavour="sglang", kv_offload=host, max_model_len=170, block_size_in_tokens=16, **stated)


def prompt(number: int, group: int) -> Job:
    keys = GroupPrefixKeys(group=group, shared_tokens=160, owner=number, tokens=160)
    return Job(Request(id=number, arrival=number * SECOND, prompt_tokens=160, prefix=keys), 1)


def first_tokens(results: Results) -> list[int]:
    return (results.first_token - results.arrival).tolist()


def test_a_load_hides_behind_the_step_that_computes() -> None:
    """The second prompt evicts the first, a whole leaf. The first one then finds 9 of its 10 blocks in the host, as the
    last one is computed anyway: 16 tokens in 2,600 µs, in which 9 · 16 µs of loading hide."""
    results = simulate([prompt(0, 1), prompt(1, 2), prompt(2, 1)], None, engine("write_through"))
    assert first_tokens(results) == [17_000, 17_000, 1000 + 1600]
    assert results.cached_tokens.tolist() == [0, 0, 144]
    assert results.instances[0].fetched_blocks == 9


def test_a_load_that_takes_longer_than_the_step_is_what_the_step_takes() -> None:
    """At 0.01 GB/s a block takes 1,600 µs."""
    results = simulate([prompt(0, 1), prompt(1, 2), prompt(2, 1)], None, engine("write_through", gb_s=0.01))
    assert first_tokens(results) == [17_000, 17_000, 9 * 1600]


def test_a_write_back_holds_up_the_step_that_evicts() -> None:
    """The step of the second prompt waits until the 10 blocks of the first are copied; so does the third prompt for those of
    the second."""
    results = simulate([prompt(0, 1), prompt(1, 2), prompt(2, 1)], None, engine("write_back"))
    assert first_tokens(results) == [17_000, 17_000 + 160, 2600 + 160]
    assert results.cached_tokens.tolist() == [0, 0, 144]


def test_the_selective_policy_copies_what_was_used_twice() -> None:
    """The prompt of group 1 comes once and is lost; then twice, and is found in the host."""
    once = simulate([prompt(0, 1), prompt(1, 2), prompt(2, 1)], None, engine("write_through_selective"))
    assert once.cached_tokens.tolist() == [0, 0, 0]
    twice = simulate([prompt(0, 1), prompt(1, 1), prompt(2, 2), prompt(3, 1)], None, engine("write_through_selective"))
    assert twice.cached_tokens.tolist() == [0, 144, 0, 144]
    assert twice.instances[0].fetched_blocks == 9


def test_what_is_in_both_places_takes_the_room_of_what_is_in_the_host_alone() -> None:
    """A host of 12 blocks. The copy of a prompt that the GPU has stays, so of the other one only 2 do: under write_through
    those at its beginning. With write_back the host has nothing that the GPU has, but what it has loaded."""
    jobs = [prompt(0, 1), prompt(1, 2), prompt(2, 1)]
    results = {policy: simulate(jobs, None, engine(policy, 12)) for policy in HITS_TO_WRITE}
    assert {policy: each.cached_tokens.tolist()[2] for policy, each in results.items()} == {
        "write_through": 32,
        "write_through_selective": 0,
        "write_back": 144,
    }


def test_a_few_tokens_are_not_loaded() -> None:
    cache = RadixCache(1, 100)
    tier = RadixHostTier(cache, 100, 1.0, "write_through")
    cache.insert(list(range(1, 21)))
    cache.evict(20)
    assert tier.count_leading(range(1, 10), 0) == 0
    assert tier.count_leading(range(1, 11), 0) == 10


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(0, 6)), max_size=40), st.sampled_from([4, 15, 90]))
@pytest.mark.parametrize("policy", HITS_TO_WRITE)
def test_the_books_of_the_host_balance(policy: str, uses: list[tuple[int, int, int]], capacity: int) -> None:
    cache = RadixCache(16, 30)
    tier = RadixHostTier(cache, capacity, 1.0, policy)
    for group, blocks, evicted in uses:
        cache.insert([group * 100 + block for block in range(blocks)])
        cache.evict(evicted)
        cache.check()
        assert len(tier._blocks) + len(tier._on_gpu) <= capacity
        assert all(cache.contains(block) for block in tier._on_gpu)
        assert not any(cache.contains(block) for block in tier._blocks)


def crowd(seed: int) -> list[Job]:
    draw, jobs = Random(seed), []
    for i in range(60):
        tokens = draw.randrange(1, 150)
        keys = GroupPrefixKeys(group=draw.randrange(1, 7), shared_tokens=tokens, owner=i, tokens=tokens)
        jobs.append(Job(Request(id=i, arrival=i * 2500, prompt_tokens=tokens, prefix=keys), draw.randrange(1, 20)))
    return jobs


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(sorted(HITS_TO_WRITE)),
    blocks=st.sampled_from([3, 20, 500]),
    total=st.sampled_from([16, 30]),
    budget=st.sampled_from([32, 512]),
    scheduler=st.sampled_from(["sglang(fcfs)", "sglang(lpm)"]),
)
def test_skipping_changes_nothing(seed: int, policy: str, blocks: int, total: int, budget: int, scheduler: str) -> None:
    def run(**keys: Any) -> Results:
        config = engine(policy, blocks, total=total, max_num_batched_tokens=budget, scheduler=scheduler, **keys)
        return simulate(crowd(seed), None, config)

    skipped, stepped = run(), run(step_by_step=True)
    for name in ("first_token", "finished", "cached_tokens", "preemptions"):
        assert np.array_equal(getattr(skipped, name), getattr(stepped, name)), name
    assert skipped.instances[0].fetched_blocks == stepped.instances[0].fetched_blocks


def test_more_memory_finds_more() -> None:
    found = Counter(
        {blocks: int(simulate(crowd(7), None, engine("write_through", blocks)).cached_tokens.sum()) for blocks in (1, 100)}
    )
    assert found[100] > 1.5 * found[1]
