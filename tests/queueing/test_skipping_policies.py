"""No policy may see how many steps were skipped: the same events, to the microsecond, as of one step after the other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_samples import ALL, begun, drained, mixed, queue, seq

from maitred.core.request import Request
from maitred.instance import Instance, InstanceConfig, LinearLatency

Job = tuple[Request, int]


def workload(rng: Random) -> list[Job]:
    """More than the instance has room for, with pauses in which long answers go on while others wait for room."""
    jobs, now = [], 0
    for number in range(rng.randint(2, 18)):
        now += rng.choice([0, 1, 30, 700])
        jobs.append((mixed(rng, number, now).request, rng.randint(1, 120)))
    return jobs


def driven(config: InstanceConfig, jobs: list[Job]) -> list[tuple[int, int, int, int]]:
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
        seen += [(e.at, int(e.kind), e.seq.request.id, e.seq.num_output_tokens) for e in engine.advance(now)]
        engine.check()


@pytest.mark.parametrize("spelling", ALL)
@settings(max_examples=15)
@given(seed=st.integers(0, 100_000), seqs=st.sampled_from([2, 4, 256]), blocks=st.sampled_from([14, 20, 40]))
def test_skipping_changes_nothing(spelling: str, seed: int, seqs: int, blocks: int) -> None:
    jobs = workload(Random(seed))
    config = {
        "scheduler": spelling,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 64,
        "total_kv_blocks": blocks,
        "latency": LinearLatency((40, 1, 2)),
    }
    skipping = driven(InstanceConfig(**config), jobs)  # type: ignore[arg-type]
    assert skipping == driven(InstanceConfig(**config, step_by_step=True), jobs)  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", ["by-priority(sglang(random))", "vtc(sglang(random))", "vtc(sglang(random), slack=9)"])
def test_asking_how_long_the_head_stays_changes_no_order(spelling: str) -> None:
    """In a step without room nobody is asked for, but whoever skips steps asks until when that stays so."""
    orders = []
    for asking in (False, True):
        waiting = queue(spelling)
        for number in range(20):
            waiting.add(seq(number), 0)
        for step in range(4):
            begun(waiting, step, step_index=step)
            if asking:
                waiting.next_order_change(step)
        orders.append(drained(waiting))
    assert orders[0] == orders[1] != sorted(orders[0])
