"""Instances by vLLM's rules: what holds for all of them, with every switch, and what their keys may be."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instance_timeline import request
from msgspec.structs import replace
from test_skipping import drive, workloads

from maitred.core.request import Request
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency
from maitred.kv import PromptTokenIds

Jobs = list[tuple[Request, int]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], Jobs, list[tuple[int, int]]]:
    """Draw a workload of `test_skipping` with priorities, prefixes and limits of answers, and every switch of vLLM."""
    config, jobs, aborts = draw(workloads())
    policy = draw(st.sampled_from(["fcfs", "priority"]))
    scheduler = draw(st.sampled_from(["fcfs", "sjf", "hrrn", "aged-sjf", "vtc", "srpt"]))
    is_chunked = draw(st.booleans())
    config |= {
        "scheduler": "fcfs" if policy == "priority" else scheduler,
        "scheduling_policy": policy,
        "async_scheduling": draw(st.booleans()),
        "enable_prefix_caching": draw(st.booleans()),
        "enable_chunked_prefill": is_chunked,
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        # By priority, long prompts could preempt each other for ever without it, as in vLLM.
        "scheduler_reserve_full_isl": policy == "priority" or draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.1, 0.5])),
        "vllm_release": draw(st.sampled_from(["0.32", "0.33"])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 2, 5])),
        "max_num_queued_reqs": draw(st.sampled_from([None, None, 0, 3])),
        "max_num_queued_tokens": draw(st.sampled_from([None, None, 0, 40])),
    }
    shared = tuple(range(300))
    jobs = [
        (
            replace(
                each,
                priority=draw(st.integers(0, 2)),
                max_output_tokens=draw(st.sampled_from([None, tokens, tokens + 3])),
                prefix=PromptTokenIds(shared[: draw(st.integers(0, each.prompt_tokens))] + (1000 + number,) * 300),
            ),
            tokens,
        )
        for number, (each, tokens) in enumerate(jobs)
    ]
    jobs = [(replace(each, prefix=PromptTokenIds(each.prefix.tokens[: each.prompt_tokens])), tokens) for each, tokens in jobs]
    return config, jobs, aborts


@settings(max_examples=40, deadline=None)
@given(cases(), st.sets(st.integers(0, 4000), max_size=4))
def test_skipping_changes_nothing_and_every_request_ends_once(case: Any, looks: set[int]) -> None:
    """`drive` checks the ledger of the blocks after every event."""
    config, jobs, aborts = case
    skipping = drive(InstanceConfig(**config), jobs, aborts, looks)
    assert skipping == drive(InstanceConfig(**config, step_by_step=True), jobs, aborts, set())
    ends = [number for _, kind, number, _ in skipping if kind > EventKind.KV_PREEMPTED]
    assert sorted(ends) == list(range(len(jobs)))
    engine = Instance(InstanceConfig(**config), Random(0))
    for _, kind, number, tokens in skipping:
        asked, answer = jobs[number]
        if kind == EventKind.FINISHED:
            assert tokens == engine.lengths.output_length(asked, answer)
        elif kind == EventKind.REFUSED:
            assert engine.lengths.rejection_reason(asked) is not None
        elif kind == EventKind.REJECTED:
            assert config["max_num_queued_reqs"] is not None or config["max_num_queued_tokens"] is not None


@settings(max_examples=30, deadline=None)
@given(cases())
def test_no_step_exceeds_its_limits(case: Any) -> None:
    config, jobs, _ = case
    engine = Instance(InstanceConfig(**config, step_by_step=True), Random(0))
    core, largest = engine._core, config["max_num_batched_tokens"]
    for asked, tokens in jobs:
        engine.enqueue(replace(asked, arrival=0, deadline=None), tokens, 0)
    while (now := engine.next_event()) is not None:
        if core.run is not None:
            shape = core.run.shape
            assert shape.num_decodes + shape.prefill_tokens <= largest
            assert len(core.batch.sequences) <= config["max_num_seqs"]
            threshold = config["long_prefill_token_threshold"]
            if threshold and not config["long_prefill_token_threshold_adaptive"] and len(core.sequences) > 1:
                assert all(chunk.num_tokens <= threshold for chunk in shape.chunks)
            if not config["enable_chunked_prefill"] and not threshold:
                assert all(chunk.num_computed_tokens + chunk.num_tokens == chunk.total_tokens for chunk in shape.chunks)
            assert all(chunk.num_tokens > 0 for chunk in shape.chunks)
        engine.advance(now)
        engine.check()
    assert engine.free_blocks == engine.total_blocks


def test_the_queue_has_a_limit_of_requests() -> None:
    engine = Instance(InstanceConfig(max_num_seqs=1, max_num_queued_reqs=2, latency=LinearLatency((100, 1, 10))), Random(0))
    assert engine.overload_reason([5, 5]) is None
    assert engine.overload_reason([5, 5, 5]) == "0 requests wait and run, and max_num_queued_reqs is 2"
    for number in range(3):
        engine.enqueue(request(number), 2, 0)
    assert engine.overload_reason([5]) == "2 requests wait and run, and max_num_queued_reqs is 2"
    events = [(event.kind, event.seq.request.id) for event in engine.advance(0)]
    assert events == [(EventKind.REJECTED, 2)]


def test_the_queue_has_a_limit_of_prompt_tokens_that_wait_for_a_first_token() -> None:
    engine = Instance(InstanceConfig(max_num_queued_tokens=60, latency=LinearLatency((100, 1, 10))), Random(0))
    engine.enqueue(request(0), 9, 0)  # 50 tokens
    assert engine.overload_reason([5]) is None  # it is below the limit, however long the next prompt is
    engine.enqueue(request(1), 9, 0)
    assert engine.overload_reason([5]) == "100 prompt tokens wait for a first token, and max_num_queued_tokens is 60"
    assert engine.next_event() == 200
    engine.advance(200)  # both have their first tokens
    assert engine.overload_reason([5]) is None


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"watermark": 1.0}, "watermark must be from 0 to below 1, not 1.0"),
        ({"watermark": -0.1}, "watermark must be from 0 to below 1"),
        ({"prefill_schedule_interval": 0}, "prefill_schedule_interval must be at least 1, not 0"),
        ({"max_num_active_seqs": 0}, "max_num_active_seqs must be from 1 to max_num_seqs 256, not 0"),
        ({"max_num_active_seqs": 9, "max_num_seqs": 8}, "max_num_active_seqs must be from 1 to max_num_seqs 8, not 9"),
        ({"max_num_active_seqs": 9, "batching": "max-utilization"}, "max_num_active_seqs has no effect with batching"),
        ({"max_num_queued_reqs": -1}, "max_num_queued_reqs must be at least 0, not -1"),
        ({"max_num_queued_tokens": -1}, "max_num_queued_tokens must be at least 0, not -1"),
        ({"max_chunk_tokens": 0}, "max_chunk_tokens must be from 1 to"),
        (
            {"enable_chunked_prefill": False, "max_model_len": 4096},
            "max_num_batched_tokens 2048 must be at least max_model_len 4096 without enable_chunked_prefill",
        ),
        ({"scheduling_policy": "priority", "scheduler": "sjf"}, "leave out one of it and scheduler sjf"),
        (
            {"scheduling_policy": "priority", "enable_priority_scheduling": True},
            "leave out one of it and enable_priority_sched",
        ),
        ({"scheduling_policy": "priority", "preemption_policy": "priority"}, "leave out one of it and preemption_policy"),
        (
            {"flavour": "blis", "watermark": 0.1},
            "watermark is not for flavour blis: leave out one of watermark and flavour blis",
        ),
        ({"batching": "max-utilization", "watermark": 0.1}, "watermark has no effect with batching: leave out one of the two"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        InstanceConfig(**keys)


def test_what_is_hardly_meant_is_said() -> None:
    def warned(**keys: Any) -> str:
        return " ".join(InstanceConfig(**keys).warnings(prefix_cache=False))

    assert "adaptive has no effect without long_prefill_token_threshold" in warned(long_prefill_token_threshold_adaptive=True)
    assert "for ever, as in vLLM" in warned(scheduling_policy="priority", scheduler_reserve_full_isl=False)
    assert 'no effect in an engine by itself with vllm_release "0.32"' in warned(prefill_schedule_interval=4)
    assert not warned(prefill_schedule_interval=4, vllm_release="0.33")
    assert not warned(scheduling_policy="priority", watermark=0.1, long_prefill_token_threshold=5)


def test_without_chunked_prefill_a_request_is_no_longer_than_the_budget() -> None:
    config = InstanceConfig(enable_chunked_prefill=False, max_num_batched_tokens=300)
    assert config.model_len == 300


def test_vllm_counts_its_null_block_for_the_watermark() -> None:
    assert InstanceConfig(total_kv_blocks=99, watermark=0.1).batch_limits.watermark_blocks == 10


def test_the_most_urgent_goes_first_and_comes_back_by_its_arrival() -> None:
    config = InstanceConfig(scheduling_policy="priority", max_num_seqs=1, latency=LinearLatency((100, 1, 10)))
    engine = Instance(config, Random(0))
    for number, priority in ((0, 0.0), (1, 1.0), (2, 1.0), (3, 2.0)):
        engine.enqueue(replace(request(number), priority=priority), 1, 0)
    order = []
    while (now := engine.next_event()) is not None:
        order += [event.seq.request.id for event in engine.advance(now) if event.kind == EventKind.FINISHED]
    assert order == [3, 1, 2, 0]
