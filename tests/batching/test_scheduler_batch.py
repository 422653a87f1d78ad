"""An instance whose steps a batch scheduler decides: its ledger, its answers, its errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instance_driver import config, drive, request
from trtllm_conformance.kv_cache_manager import KvCacheManager

from maitred.batching import GuaranteedNoEvict, SimpleScheduler, TokenBudgetScheduler
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.instance import InstanceConfig
from maitred.kv import PromptTokenIds

TWO = [(request(0, 0, 10, 80), 80), (request(1, 0, 10, 80), 80)]
"""The example of capacity.py: 9 blocks each to completion, with 10 in all."""


def test_no_evict_runs_one_after_the_other() -> None:
    events = drive(config("guaranteed-no-evict", total_kv_blocks=10), TWO)
    finished = [(at, number) for at, kind, number, _ in events if kind == "FINISHED"]
    assert finished == [(800, 0), (1600, 1)]  # 80 steps each
    assert not [event for event in events if event[1] == "KV_PREEMPTED"]


def test_max_utilization_pauses_the_last_one_in_step_41() -> None:
    events = drive(config("max-utilization", total_kv_blocks=10), TWO)
    assert (410, "KV_PREEMPTED", 1, 41) in events
    # It returns when the first is complete, with 51 tokens to compute, and emits the other 39 in as many steps.
    assert [(at, number) for at, kind, number, _ in events if kind == "FINISHED"] == [(800, 0), (1190, 1)]


def test_a_pause_frees_what_no_other_request_shares() -> None:
    """Two prompts of 40 tokens with 30 in common, in 7 blocks: 4, and 1 more for the second, which begins when the first is
    computed. Each opens a block with its 41st token. In step 12 the first needs a seventh block: pausing the second frees its
    2 own blocks, not the 3 that both hold."""
    common = tuple(range(30))
    jobs = [(request(n, 0, 40, 30, prefix=PromptTokenIds((*common, *range(100 * n, 100 * n + 10)))), 25) for n in (1, 2)]
    keys = {"enable_prefix_caching": True, "total_kv_blocks": 7}
    events = drive(config("max-utilization", **keys), jobs)
    assert [(at, number, emitted) for at, kind, number, emitted in events if kind == "KV_PREEMPTED"] == [(110, 2, 10)]
    assert sorted(number for _, kind, number, _ in events if kind == "FINISHED") == [1, 2]


def test_a_static_batch_is_closed_until_it_is_complete() -> None:
    jobs = [(request(0, 0, 10, 5), 5), (request(1, 0, 10, 3), 3), (request(2, 15, 10, 2), 2)]
    events = drive(config("static-batch", total_kv_blocks=10), jobs)
    assert [(at, number) for at, kind, number, _ in events if kind == "FIRST_TOKEN"] == [(10, 0), (10, 1), (60, 2)]


@pytest.mark.parametrize(
    ("batching", "prompts", "first"),
    [
        ("guaranteed-no-evict", [10], 30),  # arrives at 15, is in the step from 20 to 30
        ("batch-waiting(0.5, 3)", [10], 60),  # three steps more
        ("batch-waiting(0.5, 3)", [49], 30),  # 49 tokens and the one of request 0 are half of a step
        ("batch-waiting(0.5, 3)", [24, 25], 30),
        ("batch-waiting(0, 3)", [10], 30),
        ("batch-waiting(0.5, 0)", [10], 30),
    ],
)
def test_prompts_wait_for_others_or_for_some_steps(batching: str, prompts: list[int], first: int) -> None:
    jobs = [(request(0, 0, 10, 40), 40), *((request(n, 15, tokens, 2), 2) for n, tokens in enumerate(prompts, 1))]
    events = drive(config(batching, total_kv_blocks=60), jobs)
    assert [at for at, kind, number, _ in events if kind == "FIRST_TOKEN" and number] == [first] * len(prompts)


def test_prompts_do_not_wait_where_nothing_generates() -> None:
    events = drive(config("batch-waiting(0.5, 3)", total_kv_blocks=60), [(request(0, 0, 10, 2), 2), (request(1, 90, 10, 2), 2)])
    assert [at for at, kind, _, _ in events if kind == "FIRST_TOKEN"] == [10, 100]


def test_prompts_share_a_step_by_the_chunking_policy() -> None:
    jobs = [(request(0, 0, 60, 1), 1), (request(1, 0, 60, 1), 1)]
    ends = {}
    for policy in ("first-come-first-served", "equal-progress"):
        budget = {"max_num_batched_tokens": 60, "context_chunking_policy": policy, "total_kv_blocks": 40}
        ends[policy] = [
            (at, number) for at, kind, number, _ in drive(config("max-utilization", **budget), jobs) if kind == "FINISHED"
        ]
    assert ends == {"first-come-first-served": [(10, 0), (20, 1)], "equal-progress": [(20, 0), (20, 1)]}


def test_what_is_cached_is_charged_to_neither_budget() -> None:
    prompt = PromptTokenIds(tuple(range(80)))
    jobs = [(request(0, 0, 80, 2, prefix=prompt), 2), (request(1, 0, 80, 2, prefix=prompt), 2)]
    keys = {"enable_prefix_caching": True, "total_kv_blocks": 12}
    events = drive(config("guaranteed-no-evict", **keys), jobs)
    # The second prompt waits for the first one's blocks, which it shares: 9 + 2 blocks are all it takes, and 10 tokens.
    assert [(at, number) for at, kind, number, _ in events if kind == "FIRST_TOKEN"] == [(10, 0), (20, 1)]


PLUGIN = """
from maitred.batching import CapacityScheduler, LlmRequestState

class Nothing(CapacityScheduler):
    def __init__(self, max_num_requests, kv_cache_manager): pass
    def schedule_request(self, active_requests): return [], []

class Stubborn(Nothing):
    def schedule_request(self, active_requests):
        assert False, "no request gets its resources: increase the KV cache pool size"

class Greedy(Nothing):
    def schedule_request(self, active_requests): return active_requests, []

class Alone(Nothing):
    def schedule_request(self, active_requests): return active_requests[:1]

class Slip(Nothing):
    def schedule_request(self, active_requests): return {}[active_requests[0].request_id]

class Twice(Nothing):
    def schedule_request(self, active_requests): return [], active_requests
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", r"schedules nothing, and 2 requests are active \(request 0 needs 9 blocks to its completion, and 10 of 10"),
        ("Stubborn", "Stubborn: no request gets its resources: increase the KV cache pool size"),
        ("Greedy", r"schedules requests that need 2 KV blocks, and 0 are free \(increase total_kv_blocks"),
        ("Alone", r"Alone: TypeError: schedule_request returns a list of 1, not \(fitting, paused\) or \(fitting, disagg"),
        ("Slip", r"Slip: KeyError: 0 \(its own code raised this"),
        ("Twice", "pauses request 0, which has not begun"),
    ],
)
def test_a_scheduler_that_cannot_go_on_is_an_error(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_schedulers.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_schedulers", raising=False)
    with pytest.raises(ConfigError, match=message):
        drive(config(f"odd_schedulers:{name}", total_kv_blocks=10), TWO)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"flavour": "blis"}, "batching is not for flavour blis"),
        ({"max_num_batched_tokens": 9}, "max_num_batched_tokens 9 holds no chunk of block_size_in_tokens 10"),
        ({"long_prefill_token_threshold": 5}, "long_prefill_token_threshold has no effect with batching"),
    ],
)
def test_what_does_not_combine_is_an_error_at_once(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config("max-utilization", **keys)


def test_without_chunks_a_longer_prompt_is_rejected_at_once() -> None:
    events = drive(config("guaranteed-no-evict", context_chunking_policy="none"), [(request(0, 0, 101, 1), 1)])
    assert [event[:3] for event in events] == [(0, "REFUSED", 0)]


def test_a_request_that_has_begun_goes_on_before_one_that_waited_for_a_prefix() -> None:
    """Request 1 waits for request 0 to compute the block that both begin with, and request 2 begins. When request 1 may begin,
    it needs more than is free: that must not stop request 2, whose end it waits for."""
    shared = PromptTokenIds((1, 2, 3, 4))
    jobs = [
        (request(0, 0, 4, 1, prefix=shared), 1),
        (request(1, 0, 4, 60, prefix=shared), 1),
        (request(2, 0, 17, 1, prefix=PromptTokenIds(tuple(range(100, 117)))), 1),
    ]
    sizes = {"block_size_in_tokens": 4, "total_kv_blocks": 20, "max_num_seqs": 3, "max_num_batched_tokens": 16}
    events = drive(config("guaranteed-no-evict", enable_prefix_caching=True, **sizes), jobs)
    assert [number for _, kind, number, _ in events if kind == "FINISHED"] == [0, 2, 1]


NO_EVICTION = ["guaranteed-no-evict", "static-batch", "batch-waiting(0.5, 3)"]
MAITRED = ["maitred", "maitred(look_past=2,max_skips=1,max_pauses=0)", "maitred(max_prefill_tokens=8,first_share=0.1)"]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]]:
    """Draw the configuration of an instance, requests with their answers, and aborts (instant, request)."""
    size, blocks = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([8, 20, 60, 200]))
    batching = draw(st.sampled_from([*NO_EVICTION, "max-utilization", "max-utilization(two_step_lookahead=true)", *MAITRED]))
    keys = {
        "batching": batching,
        "block_size_in_tokens": size,
        "total_kv_blocks": blocks,
        "max_num_seqs": draw(st.sampled_from([1, 3, 8, 64])),
        "max_num_batched_tokens": draw(st.sampled_from([16, 32, 512])),
        "context_chunking_policy": draw(st.sampled_from(["first-come-first-served", "equal-progress", "force-chunk"])),
        "enable_prefix_caching": draw(st.booleans()),
        "prefix_cache": draw(st.sampled_from(["blocks", "radix"])),
        "async_scheduling": draw(st.booleans()),
        "scheduler": draw(st.sampled_from(["fcfs", "sjf"])),
        "enable_priority_scheduling": draw(st.booleans()),
    }
    jobs, now = [], 0
    for number in range(draw(st.integers(1, 20))):
        now += draw(st.sampled_from([0, 0, 50, 3000, 20_000]))
        prompt, answer = draw(st.integers(1, max(2, size * blocks // 4))), draw(st.integers(1, 40))
        family = draw(st.integers(0, 2))
        tokens = tuple(range(family * 1000, family * 1000 + prompt))
        most = draw(st.sampled_from([answer, answer + 10, 60, None]))
        urgency = draw(st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0]))
        jobs.append((request(number, now, prompt, most, prefix=PromptTokenIds(tokens), priority=urgency), answer))
    return keys, jobs, draw(st.lists(st.tuples(st.integers(0, now + 9000), st.integers(0, len(jobs) - 1)), max_size=3))


def test_a_slot_that_is_about_to_be_free_is_no_stall() -> None:
    """Planned one step ahead, the slot of a completed request is filled one step later; the step between holds nothing."""
    batching = "max-utilization(two_step_lookahead=true)"
    keys: dict[str, Any] = {"batching": batching, "max_num_seqs": 1, "async_scheduling": True, "total_kv_blocks": 8}
    events = drive(InstanceConfig(**keys), [(request(number, 0, 1, 1), 1) for number in range(2)], [])
    assert [number for _, kind, number, _ in events if kind == "FINISHED"] == [0, 1]


@given(workloads())
@settings(max_examples=30, deadline=None)
def test_every_request_ends_and_skipping_is_not_seen(
    workload: tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]],
) -> None:
    keys, jobs, aborts = workload
    events = drive(InstanceConfig(**keys), jobs, aborts)
    assert events == drive(InstanceConfig(**keys, step_by_step=True), jobs, aborts)
    ended = [number for _, kind, number, _ in events if kind in ("FINISHED", "REFUSED", "ABORTED")]
    assert sorted(ended) == [*range(len(jobs))]
    if keys["batching"] in NO_EVICTION:
        assert not [event for event in events if event[1] == "KV_PREEMPTED"]


@given(workloads())
@settings(max_examples=30, deadline=None)
def test_a_decision_without_a_look_at_what_generates_is_that_with_one(
    workload: tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]],
) -> None:
    keys, jobs, aborts = workload
    events = drive(InstanceConfig(**keys), jobs, aborts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimpleScheduler, "schedule_beside", lambda self, generating, begun, pending: None)
        assert drive(InstanceConfig(**keys), jobs, aborts) == events


@pytest.mark.parametrize("batching", ["guaranteed-no-evict", "static-batch", "max-utilization"])
def test_requests_that_generate_are_not_looked_at(batching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(SimpleScheduler, "schedule_request", lambda self, active, inflight: looks.append(len(active)))
    jobs = [(request(number, 35 * number, 10, 40), 40) for number in range(6)]
    events = drive(config(batching, total_kv_blocks=60), jobs)
    assert len([event for event in events if event[1] == "FINISHED"]) == 6
    assert looks == []


def test_while_nothing_can_begin_without_eviction_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request 0 needs 9 of 10 blocks until 800 µs, and each of the others 9, too."""
    asked = []
    decide = SimpleScheduler.schedule_beside

    def count(self: SimpleScheduler, *lists: Any) -> Any:
        asked.append(lists)
        return decide(self, *lists)

    monkeypatch.setattr(SimpleScheduler, "schedule_beside", count)
    jobs = [(request(0, 0, 10, 80), 80), *((request(number, 100 * number, 10, 80), 2) for number in range(1, 8))]
    events = drive(config("guaranteed-no-evict", total_kv_blocks=10, max_num_seqs=20), jobs)
    first = [at for at, kind, _, _ in events if kind == "FIRST_TOKEN"]
    assert first == [10, *range(810, 950, 20)]
    # Each is asked about when it is to begin. When request 1 has come it is known that nothing can, until one ends.
    assert len(asked) == 8 + 1 + 6


def test_a_subclass_may_decide_in_another_way_and_is_asked() -> None:
    class Own(GuaranteedNoEvict):
        pass

    memory, micro_batch = KvCacheManager({16: 4}, 16), TokenBudgetScheduler(4)
    assert SimpleScheduler(GuaranteedNoEvict(4, memory), micro_batch).schedule_beside([], [], []) is not None
    assert SimpleScheduler(Own(4, memory), micro_batch).schedule_beside([], [], []) is None
