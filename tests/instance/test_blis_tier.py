"""BLIS's second tier of KV memory: by hand, and skipping with it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_blis_rules import FINISHED, FIRST, PREEMPTED, blis, driven, request
from test_skipping_prefixes import Job, workload

from maitred.compat.blis.tiered_blocks import HostMemory
from maitred.instance import InstanceConfig, LinearLatency

TIER = {"kv_cpu_blocks": 100, "kv_transfer_bandwidth": 2.0, "kv_transfer_base_latency": 7}
"""A block of 4 tokens takes 7 + 2 µs."""


def test_a_block_that_the_gpu_has_no_more_is_fetched_and_computed_all_the_same() -> None:
    """Five blocks. The second prompt and its answer take all, so the third finds nothing of the first on the GPU."""
    jobs = [
        (request(0, range(8)), 1),
        (request(1, range(50, 66), arrival=1000), 1),
        (request(2, range(9), arrival=2000), 1),
    ]
    engine = blis(total_kv_blocks=5, **TIER)
    assert driven(engine, jobs)[4] == (2000 + 100 + 9 + 2 * 9, FIRST, 2)
    assert engine.fetched_blocks == 2
    assert (2109, FIRST, 2) in driven(blis(total_kv_blocks=5), jobs)


def test_who_does_not_fit_waits_with_what_it_has_fetched_and_finds_it_done() -> None:
    """Six blocks, of which the second prompt takes five, so one of the first's two is left when the third comes for them, which
    needs three. It fetches the other one, into the place of the one that was left; in the next step that one, into the place of
    the other, and holds it. When the second has ended it fetches the other again, and computes that and the rest."""
    jobs = [
        (request(0, range(8)), 1),
        (request(1, range(50, 68), arrival=1000), 3),
        (request(2, range(9), arrival=1010), 1),
    ]
    assert driven(blis(total_kv_blocks=6, **TIER), jobs)[2:] == [
        (1118, FIRST, 1),
        (1118 + 2 * (110 + 9), FINISHED, 1),
        (1356 + 100 + 5 + 9, FIRST, 2),
        (1470, FINISHED, 2),
    ]


def test_a_waiting_sequence_frees_its_blocks_when_the_only_running_one_lacks_them_again() -> None:
    """As before, but the second needs the sixth block for its answer, and so gives way to itself. BLIS does that for ever."""
    jobs = [
        (request(0, range(8)), 1),
        (request(1, range(50, 68), arrival=1000), 7),
        (request(2, range(9), arrival=1010), 1),
    ]
    assert driven(blis(total_kv_blocks=6, **TIER), jobs)[2:6] == [
        (1118, FIRST, 1),
        (1356, PREEMPTED, 1),
        (1356 + 1 + 102, FIRST, 1),  # two tokens of its prompt are not cached
        (1459 + 5 * 110, FINISHED, 1),
    ]


def test_a_waiting_sequence_frees_its_blocks_when_nothing_runs_and_nothing_can_enter() -> None:
    """As before, but when the second has given way one comes first that needs all six blocks. BLIS stands still then."""
    jobs = [
        (request(0, range(8)), 1),
        (request(1, range(50, 68), arrival=1000, slo_class="background"), 6),
        (request(2, range(9), arrival=1010), 1),
        (request(3, range(200, 222), arrival=1300, slo_class="critical"), 1),
    ]
    engine = blis(total_kv_blocks=6, scheduler="priority-fcfs", priority_policy="static-slo-class", **TIER)
    assert driven(engine, jobs)[2:6] == [
        (1118, FIRST, 1),
        (1356, PREEMPTED, 1),
        (1357 + 122, FIRST, 3),
        (1479, FINISHED, 3),
    ]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    scheduler=st.sampled_from(["fcfs", "sjf", "priority-fcfs", "lpm"]),
    victims=st.sampled_from(["fcfs", "priority"]),
    seqs=st.sampled_from([2, 4, 64]),
    blocks=st.sampled_from([45, 50, 60]),
    threshold=st.sampled_from([0, 10]),
    host=st.sampled_from([5, 60, 1000]),
)
def test_skipping_changes_nothing(
    seed: int, scheduler: str, victims: str, seqs: int, blocks: int, threshold: int, host: int
) -> None:
    config: dict[str, Any] = {
        "scheduler": scheduler,
        "priority_policy": "static-slo-class",
        "preemption_policy": victims,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": threshold,
        "total_kv_blocks": blocks,
        "kv_cpu_blocks": host,
        "kv_transfer_base_latency": 3,
        "latency": LinearLatency((40, 1, 2)),
    }
    jobs: list[Job] = workload(Random(seed))
    engine = blis(**config)
    skipping = driven(engine, jobs)
    assert skipping == driven(blis(**config, step_by_step=True), jobs)
    event(f"fetched {bool(engine.fetched_blocks)}, preempted {any(kind == PREEMPTED for _, kind, _ in skipping)}")


@given(
    runs=st.lists(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), min_size=1, max_size=4), max_size=6),
    room=st.integers(1, 10),
)
def test_copying_once_after_a_run_is_copying_after_each_of_its_steps(runs: list[list[list[int]]], room: int) -> None:
    """In a run what is held only grows: step by step the blocks of `runs` join those before, which may grow in the middle."""
    often, once = HostMemory(room, 1), HostMemory(room, 1)
    for steps in runs:
        held: list[int] = []
        for number, step in enumerate(steps):
            held[number:number] = step
            often.store(held)
        once.store(held)
        assert [key for key in range(13) if key in often] == [key for key in range(13) if key in once]
        assert list(often) == list(once)


def test_the_least_recently_used_makes_room() -> None:
    host = HostMemory(2, 9)
    host.store([1, 2])
    host.fetch(1)
    host.store([3])
    assert list(host) == [1, 3]
    assert (host.num_fetched, host.take_fetch_time(), host.take_fetch_time()) == (1, 9, 0)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"kv_cpu_blocks": 10}, "must be 0 unless flavour is blis"),
        ({"kv_cpu_blocks": -1, "flavour": "blis"}, "kv_cpu_blocks must be from 0 to 1,000,000,000, not -1"),
        ({"kv_cpu_blocks": 1, "flavour": "blis", "kv_transfer_bandwidth": 0.0}, "must be a number above 0, not 0.0"),
        ({"kv_cpu_blocks": 1, "flavour": "blis", "kv_transfer_bandwidth": float("nan")}, "must be a number above 0, not nan"),
        ({"kv_cpu_blocks": 1, "flavour": "blis", "kv_transfer_base_latency": -1}, "kv_transfer_base_latency must be from 0"),
    ],
)
def test_what_cannot_be_is_an_error(said: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        InstanceConfig(**said)


def test_how_long_it_takes_does_not_matter_without_it() -> None:
    config = InstanceConfig(kv_transfer_bandwidth=50.0, kv_transfer_base_latency=3)
    assert config.warnings(prefix_cache=False) == [
        "kv_transfer_bandwidth 50.0 has no effect without kv_cpu_blocks",
        "kv_transfer_base_latency 3 has no effect without kv_cpu_blocks",
    ]
