"""Prefill and decode in separate instances: the instants and places of each stage."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.instance import InstanceConfig, LinearLatency
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, DisaggregationConfig, Outcome, Results, simulate
from maitred.sim.fleet_config import InstanceGroup
from maitred.workload import Job

FIFTY = InstanceConfig(latency=LinearLatency((50_000, 0, 0), (1000, 0, 0)))
"""Every step takes 50 ms, and a request enters its wait queue after 1 ms."""
INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))
LLAMA_8B = 131_072
"""Bytes of KV per token."""


def job(number: int, arrival: int = 0, prompt: int = 512, output: int = 5, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **fields), output)


def cluster(prefill: int = 1, decode: int = 1, **said: Any) -> ClusterConfig:
    split = {"prefill_instances": prefill, "decode_instances": decode, "kv_bytes_per_token": LLAMA_8B}
    return ClusterConfig(num_instances=prefill + decode, disaggregation=DisaggregationConfig(**(split | said)))


def test_decode_begins_when_the_transfer_ends_and_the_transfer_when_prefill_ends() -> None:
    """In this case BLIS gives 203.735 ms: 512 tokens of 128 KiB at 25 GB/s, and 50 µs, are 2.735 ms."""
    results = simulate([job(0)], cluster(), FIFTY)
    assert results.queued.tolist() == [1000]
    assert results.first_token.tolist() == [51_000]  # from the prefill instance
    assert results.scheduled.tolist() == [51_000 + 2735]
    assert results.finished.tolist() == [253_735]
    assert results.instance.tolist() == [1]
    assert results.output_tokens.tolist() == [5]
    prefill, decode = results.instances
    assert (prefill.steps, prefill.busy, decode.steps, decode.busy) == (1, 50_000, 4, 200_000)
    assert prefill.itl.count == 0
    assert (decode.itl.count, decode.itl.maximum, decode.itl.total) == (4, 52_735, 202_735)  # the client waits for KV, too


def test_prefill_and_decode_instances_may_be_of_unequal_groups() -> None:
    """The first group prefills in steps of 50 ms, the second decodes in steps of 20 ms."""
    groups = [InstanceGroup(), InstanceGroup(latency=LinearLatency((20_000, 0, 0), (1000, 0, 0)))]
    results = simulate([job(0)], msgspec.structs.replace(cluster(), groups=groups), FIFTY)
    assert results.first_token.tolist() == [51_000]
    assert results.finished.tolist() == [51_000 + 2735 + 4 * 20_000]


def test_a_prompt_that_is_not_parted_with_goes_to_the_decode_instance_alone() -> None:
    results = simulate([job(0)], cluster(decider="never"), FIFTY)
    assert results.finished.tolist() == [251_000]
    assert results.instance.tolist() == [1]


def test_an_answer_of_one_token_needs_no_second_instance() -> None:
    limited = job(1, 100_000, max_output_tokens=1)
    results = simulate([job(0, output=1), limited], cluster(), FIFTY)
    assert results.finished.tolist() == [51_000, 151_000]
    assert results.instance.tolist() == [0, 0]


class PromptBlocks(msgspec.Struct, frozen=True):
    blocks: tuple[int, ...]

    def block_keys(self, block_size: int) -> tuple[int, ...]:
        return self.blocks


def test_the_threshold_is_of_what_the_decode_instance_has_not_cached() -> None:
    """Blocks of 16. Request 0 computes its 33 tokens in the decode instance, since 33 is not above 33; of request 2, 32 of 66
    are cached."""
    cached = msgspec.structs.replace(INSTANCE, enable_prefix_caching=True)
    say = PromptBlocks((1, 2)), PromptBlocks((3, 4)), PromptBlocks((1, 2, 5, 6)), PromptBlocks((7, 8, 9, 10))
    jobs = [job(i, i * 10_000, prompt, prefix=says) for i, (prompt, says) in enumerate(zip((33, 34, 65, 66), say, strict=True))]
    results = simulate(jobs, cluster(decider="prefix-threshold", prefix_threshold=33), cached)
    parted = results.scheduled - results.first_token > 0  # it ran again, after its first token
    assert parted.tolist() == [False, True, False, True]
    assert results.cached_tokens.tolist() == [0, 0, 32, 0]


def test_kv_that_came_is_cached_where_it_came() -> None:
    cached = msgspec.structs.replace(INSTANCE, enable_prefix_caching=True)
    jobs = [job(0, 0, 33, prefix=PromptBlocks((1, 2))), job(1, 10_000, 33, prefix=PromptBlocks((1, 2)))]
    results = simulate(jobs, cluster(decider="prefix-threshold", prefix_threshold=16), cached)
    assert (results.scheduled - results.first_token > 0).tolist() == [True, False]  # 1 left is no more than 16


@pytest.mark.parametrize(("contention", "second"), [(False, 2735), (True, 5419)])
def test_transfers_may_share_the_network(contention: bool, second: int) -> None:
    """Two prompts complete in one step of two instances, so two transfers begin at once; each takes 2684.4 µs without the 50
    µs."""
    results = simulate([job(0), job(1)], cluster(2, 2, transfer_contention=contention), FIFTY)
    assert results.scheduled.tolist() == [51_000 + 2735, 51_000 + second]


@pytest.mark.parametrize("batching", [None, "guaranteed-no-evict", "maitred"])
def test_what_comes_decodes_beside_others_for_a_token_of_the_budget(batching: str | None) -> None:
    """0 decodes every 110 µs from 662 + 2735 on. 1 arrives in the middle of a step and joins the next one, which takes 120."""
    instance = msgspec.structs.replace(INSTANCE, batching=batching, max_model_len=1000)
    results = simulate([job(0, output=50), job(1, 1000, output=3)], cluster(), instance)
    assert results.first_token.tolist() == [612, 1612]
    assert results.scheduled[0] == 612 + 2735
    arrived = 1612 + 2735
    begins = 3347 + -(-(arrived - 3347) // 110) * 110
    assert results.scheduled[1] == begins
    assert results.finished[1] == begins + 2 * 120


def test_a_deadline_ends_it_on_the_network_too() -> None:
    results = simulate([job(0, deadline=52_000), job(1, 40_000)], cluster(), FIFTY)
    assert [Outcome(value) for value in results.outcome] == [Outcome.TIMED_OUT, Outcome.COMPLETED]
    assert (results.finished[0], results.first_token[0], results.output_tokens[0]) == (52_000, 51_000, 1)


class RecordingRouter(Router):
    """Chooses the first instance, and records what it sees."""

    seen: list[tuple[Micros, list[int], list[int]]]
    gone: list[tuple[Micros, int]]

    def __init__(self, rng: Random) -> None:
        RecordingRouter.seen, RecordingRouter.gone = [], []

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        RecordingRouter.seen.append((now, [view.index for view in fleet], [view.in_flight for view in fleet]))
        return Choice(fleet[0].index, "the_first")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        RecordingRouter.gone.append((now, instance))


def test_the_decode_instance_is_chosen_first_and_it_is_in_flight_in_both() -> None:
    simulate([job(0), job(1, 60_000)], cluster(2, 1), FIFTY, RoutingConfig(policy=f"{__name__}:RecordingRouter"))
    assert RecordingRouter.seen == [(0, [2], [0]), (0, [0, 1], [0, 0]), (60_000, [2], [1]), (60_000, [0, 1], [0, 0])]
    assert RecordingRouter.gone[:2] == [(51_000, 0), (111_000, 0)]
    assert sorted(index for _, index in RecordingRouter.gone) == [0, 0, 2, 2]


def test_each_pool_may_have_scorers_of_its_own() -> None:
    said = cluster(2, 2, prefill_scorers="active-requests:1", decode_scorers="active-requests:1")
    results = simulate([job(i) for i in range(4)], said, FIFTY, RoutingConfig(policy=f"{__name__}:RecordingRouter"))
    assert RecordingRouter.seen == []
    assert sorted(results.instance.tolist()) == [2, 2, 3, 3]


@pytest.mark.parametrize("batching", [None, "max-utilization"])
def test_memory_that_is_short_makes_it_wait_and_loses_no_request(batching: str | None) -> None:
    """Each request needs 5 of the 12 blocks of a decode instance and grows to 8. Two fit, until the second is preempted."""
    small = msgspec.structs.replace(INSTANCE, total_kv_blocks=12, batching=batching)
    results = simulate([job(i, prompt=70, output=50) for i in range(6)], cluster(2, 1), small)
    assert set(results.outcome.tolist()) == {Outcome.COMPLETED}
    assert results.preemptions.sum() > 0
    assert results.wasted_tokens.sum() > 0
    assert set(results.instance.tolist()) == {2}


@settings(max_examples=20)
@given(
    seed=st.integers(0, 99),
    pools=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    decider=st.sampled_from(["always", "prefix-threshold"]),
    blocks=st.sampled_from([12, 40, 1000]),
    caching=st.booleans(),
    batching=st.sampled_from([None, None, "guaranteed-no-evict", "max-utilization", "maitred"]),
)
def test_skipping_changes_nothing(
    seed: int, pools: tuple[int, int], decider: str, blocks: int, caching: bool, batching: str | None
) -> None:
    rng = Random(seed)
    jobs = []
    for i in range(40):
        family = int(rng.random() * 3)
        begins = tuple(hash((family, block)) for block in range(int(rng.random() * 4)))
        fields = {"prefix": PromptBlocks(begins), "deadline": None if rng.random() < 0.8 else i * 130 + 2000}
        jobs.append(job(i, i * 130, 16 * len(begins) + 1 + int(rng.random() * 60), 1 + int(rng.random() * 40), **fields))

    def run(step_by_step: bool) -> Results:
        config = msgspec.structs.replace(
            INSTANCE,
            total_kv_blocks=blocks,
            max_num_seqs=4,
            enable_prefix_caching=caching,
            batching=batching,
            step_by_step=step_by_step,
        )
        return simulate(jobs, cluster(*pools, decider=decider, kv_bytes_per_token=20_000.0, transfer_contention=True), config)

    skipping, stepping = run(False), run(True)
    for name in Results.__struct_fields__:
        np.testing.assert_array_equal(getattr(skipping, name), getattr(stepping, name), err_msg=name)
    assert len(skipping) == 40
    assert Outcome.UNFINISHED not in set(skipping.outcome.tolist())


def test_what_cannot_be_says_so() -> None:
    with pytest.raises(ValueError, match="both at least 1, or both 0"):
        DisaggregationConfig(prefill_instances=1)
    with pytest.raises(ConfigError, match="1 prefill and 1 decode instances are not num_instances 3"):
        simulate([], msgspec.structs.replace(cluster(), num_instances=3), INSTANCE)
    with pytest.raises(ConfigError, match="the size of the KV of a token is not known"):
        simulate([], cluster(kv_bytes_per_token=None), INSTANCE)
    with pytest.raises(ConfigError, match="flavour blis is not for prefill and decode"):
        simulate([], cluster(), msgspec.structs.replace(INSTANCE, flavour="blis"))
    with pytest.raises(ValueError, match="transfer_bandwidth_gb_s must be above 0"):
        cluster(transfer_bandwidth_gb_s=0)
