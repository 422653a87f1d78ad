"""Over a prefix cache, too, no policy may see how many steps were skipped."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.kv import TokenIds
from maitred.request import Request

POLICIES = [
    "lpm",
    "lpm(check=64, deprioritize=20)",
    "dfs-weight",
    "hrrn",
    "shortest-prefill-first",
    "sglang(lpm)",
    "sglang(dfs-weight)",
    "sglang(hrrn)",
    "sglang(shortest-prefill-first, deprioritize=20)",
]


def workload(random: Random) -> list[tuple[Request, int]]:
    jobs, now = [], 0
    for number in range(random.randint(2, 25)):
        now += random.choice([0, 1, 30, 700])
        tokens = tuple([random.randrange(3)] * random.randrange(50) + [random.randrange(9)] * random.randrange(1, 40))
        jobs.append(
            (Request(id=number, arrival=now, prompt_tokens=len(tokens), prefix=TokenIds(tokens)), random.randint(1, 90))
        )
    return jobs


def driven(config: InstanceConfig, jobs: list[tuple[Request, int]]) -> list[tuple[int, int, int, int]]:
    """All events as (at, kind, request, tokens emitted)."""
    engine, coming, seen = Instance(config, Random(5)), list(jobs), []
    while True:
        due = engine.next_event()
        arrivals = [request.arrival for request, _ in coming[:1]]
        if due is None and not arrivals:
            return seen
        now = min([*arrivals, *([] if due is None else [due])])
        while coming and coming[0][0].arrival == now:
            engine.enqueue(*coming.pop(0), now)
        seen += [(e.at, int(e.kind), e.seq.request.id, e.seq.emitted) for e in engine.advance(now)]
        engine.check()


@pytest.mark.parametrize("spelling", POLICIES)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    seqs=st.sampled_from([2, 4, 256]),
    blocks=st.sampled_from([14, 20, 40]),
    kept=st.sampled_from(["blocks", "radix"]),
)
def test_skipping_changes_nothing(spelling: str, seed: int, seqs: int, blocks: int, kept: str) -> None:
    jobs = workload(Random(seed))
    config = {
        "scheduler": spelling,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 64,
        "total_kv_blocks": blocks,
        "enable_prefix_caching": True,
        "prefix_cache": kept,
        "latency": LinearLatency((40, 1, 2)),
    }
    skipping = driven(InstanceConfig(**config), jobs)  # type: ignore[arg-type]
    assert skipping == driven(InstanceConfig(**config, step_by_step=True), jobs)  # type: ignore[arg-type]
