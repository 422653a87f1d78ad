"""Skipping must not be seen with a prefix cache either, under any policy, least of all by those that look at the cache."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from maitred.core.request import PriorityClass, Request
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency
from maitred.kv import PromptTokenIds
from maitred.queueing import SCHEDULERS

Job = tuple[Request, int]
POLICIES = [
    *SCHEDULERS,
    "bounded(lpm, max_wait=0.0005)",
    "bounded(hrrn, max_displacement=2)",
    "vtc(lpm, slack=50)",
    "by-priority(shortest-prefill-first)",
    "lpm(check=64, deprioritize=20)",
    "sglang(lpm)",
    "sglang(dfs-weight)",
    "sglang(hrrn)",
    "sglang(shortest-prefill-first, deprioritize=20)",
]


def workload(rng: Random) -> list[Job]:
    """Return requests of a few families with a common beginning, some of them equal, and pauses in which long answers go on."""
    jobs, now = [], 0
    for number in range(rng.randint(2, 18)):
        now += rng.choice([0, 1, 30, 700])
        family, common, own = rng.randint(0, 2), rng.choice([0, 8, 16, 40]), rng.choice([1, 3, 20])
        tokens = (*range(family * 1000, family * 1000 + common), *(9000 + 50 * rng.randint(0, 30) + i for i in range(own)))
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=len(tokens),
            max_output_tokens=rng.choice([None, 40]),
            priority_class=rng.choice(list(PriorityClass)),
            priority=float(rng.randint(0, 2)),
            tenant=rng.choice("ab"),
            deadline=rng.choice([None, None, now + 2500]),
            cache_namespace=rng.choice(["", "", "other"]),
            prefix=PromptTokenIds(tokens) if rng.random() < 0.9 else None,
        )
        jobs.append((request, rng.randint(1, 120)))
    return jobs


def driven(config: InstanceConfig, jobs: list[Job]) -> list[tuple[int, int, int, int, int]]:
    """Return all events as (at, kind, request, tokens emitted, tokens cached)."""
    engine, coming, seen = Instance(config, Random(5)), list(jobs), []
    while True:
        due = engine.next_event()
        arrivals = [request.arrival for request, _ in coming[:1]]
        if due is None and not arrivals:
            return seen
        now = min([*arrivals, *([] if due is None else [due])])
        while coming and coming[0][0].arrival == now:
            engine.enqueue(*coming.pop(0), now)
        seen += [
            (e.at, int(e.kind), e.seq.request.id, e.seq.num_output_tokens, e.seq.num_cached_tokens) for e in engine.advance(now)
        ]
        engine.check()


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    seqs=st.sampled_from([2, 4, 256]),
    blocks=st.sampled_from([50, 60, 90]),
    cache=st.sampled_from(["blocks", "radix"]),
    victims=st.sampled_from(["fcfs", "fcfs", "priority"]),
)
def test_skipping_changes_nothing(policy: str, seed: int, seqs: int, blocks: int, cache: str, victims: str) -> None:
    jobs = workload(Random(seed))
    config = {
        "scheduler": policy,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 64,
        "total_kv_blocks": blocks,
        "block_size_in_tokens": 4,
        "enable_prefix_caching": True,
        "prefix_cache": cache,
        "preemption_policy": victims,
        "latency": LinearLatency((40, 1, 2)),
    }
    skipping = driven(InstanceConfig(**config), jobs)  # type: ignore[arg-type]
    assert skipping == driven(InstanceConfig(**config, step_by_step=True), jobs)  # type: ignore[arg-type]
    event(f"preempted {any(kind == EventKind.KV_PREEMPTED for _, kind, *_ in skipping)}")
    event(f"cached {any(cached for *_, cached in skipping)}")


@pytest.mark.parametrize("step_by_step", [True, False])
def test_a_block_is_used_when_the_step_that_fills_it_is_over_though_a_request_waits(step_by_step: bool) -> None:
    """Blocks of 4, steps of 100 µs + 1 per prompt token + 10 per decode. 0 holds 8 tokens from 217 on and begins a third block
    in the step that ends at 327; 1 needs 9 blocks, and waits."""
    said = {"total_kv_blocks": 10, "block_size_in_tokens": 4, "enable_prefix_caching": True, "step_by_step": step_by_step}
    engine = Instance(InstanceConfig(**said, latency=LinearLatency((100, 1, 10))), Random(0))  # type: ignore[arg-type]
    for number, prompt in enumerate((7, 36)):
        engine.enqueue(Request(id=number, arrival=0, prompt_tokens=prompt, max_output_tokens=4 - number), 20, 0)
    used = {}
    for now in (50, 150, 300, 350):
        while (due := engine.next_event()) is not None and due <= now:
            engine.advance(due)
        engine.commit_ended_steps(now)
        used[now] = engine.total_blocks - engine.free_blocks
    assert used == {50: 2, 150: 2, 300: 2, 350: 3}
