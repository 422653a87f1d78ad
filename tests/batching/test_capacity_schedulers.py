"""The two stages by hand-computed numbers, and what no state of the requests may break."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trtllm_conformance.block_needs import BlockGeometry, SequenceNeed, blocks_to_completion
from trtllm_conformance.kv_cache_manager import KvCacheManager
from trtllm_conformance.requests import EngineRequest

from maitred.batching import (
    CapacityScheduler,
    ChunkingPolicy,
    ContextChunkingConfig,
    GuaranteedNoEvict,
    LlmRequestState,
    MaxUtilization,
    MicroBatchScheduler,
    RequestList,
    SchedulerResources,
    SimpleScheduler,
    TokenBudgetScheduler,
    make_scheduler,
)
from maitred.compat.trtllm import StrictMaxUtilization
from maitred.core.errors import ConfigError
from maitred.testing.batching import check_output

CONTEXT, GENERATING = LlmRequestState.CONTEXT_INIT, LlmRequestState.GENERATION_IN_PROGRESS
POLICIES = ["max-requests", "guaranteed-no-evict", "static-batch", "max-utilization", "trtllm-max-utilization", "maitred"]


def generating(number: int, prompt: int, answer: int, kv_cache: KvCacheManager, **fields: Any) -> EngineRequest:
    """Return a request that has emitted its first token."""
    request = EngineRequest(number, prompt, answer, **fields)
    kv_cache.add_sequence(request)
    request.context_current_position, request.state, request.num_generated_tokens = prompt, GENERATING, 1
    return request


def ids(requests: RequestList) -> list[int]:
    return [request.request_id for request in requests]


def test_each_window_has_a_budget_of_its_own() -> None:
    # 40 + 40 tokens in blocks of 10: 8 blocks in the window of 100, and 2 in that of 20, of which 3 and 1 slides: 3.
    kv_cache = KvCacheManager({100: 20, 20: 5}, 10)
    requests = [EngineRequest(number, 40, 40) for number in range(2)]
    fitting, _, _ = GuaranteedNoEvict(4, kv_cache).schedule_request(requests)
    assert ids(fitting) == [0]  # 16 of 20 blocks would do, but 6 of 5 in the small window do not
    assert blocks_to_completion(SequenceNeed(40, 40), BlockGeometry(10, 20, is_sliding=True)) == 3
    assert blocks_to_completion(SequenceNeed(40, 40), BlockGeometry(10, 20)) == 2


def test_a_half_computed_prompt_makes_its_duplicates_wait() -> None:
    kv_cache = KvCacheManager({100: 50}, 10, enable_block_reuse=True)
    requests = [EngineRequest(number, 35, 10) for number in range(3)]
    requests[0].block_hashes = requests[1].block_hashes = [1, 2, 3]
    requests[2].block_hashes = [7, 8, 9]
    kv_cache.add_sequence(requests[0])
    requests[0].context_current_position = 10
    scheduler = GuaranteedNoEvict(4, kv_cache)
    assert ids(scheduler.schedule_request(requests)[0]) == [0, 2]
    kv_cache.store_context(requests[0])
    assert ids(scheduler.schedule_request(requests)[0]) == [0, 1, 2]
    assert requests[1].estimated_reusable_tokens == 30


@pytest.mark.parametrize(("policy", "fitting"), [(MaxUtilization, [1]), (StrictMaxUtilization, [])])
def test_a_request_that_made_another_pause_does_not_wait_for_itself(policy: type[MaxUtilization], fitting: list[int]) -> None:
    kv_cache = KvCacheManager({100: 5}, 10, enable_block_reuse=True)
    old, new = generating(0, 30, 20, kv_cache), EngineRequest(1, 30, 10)
    new.block_hashes = [1, 2, 3]
    scheduled, _, paused = policy(4, kv_cache).schedule_request([new, old])
    assert (ids(scheduled), ids(paused)) == (fitting, [0])


def test_disagg_requests_are_reserved_for_and_listed_apart() -> None:
    kv_cache = KvCacheManager({100: 8}, 10)
    waiting = EngineRequest(0, 30, 30, state=LlmRequestState.DISAGG_GENERATION_INIT)
    scheduler = SimpleScheduler(GuaranteedNoEvict(4, kv_cache), TokenBudgetScheduler(4))
    output = scheduler.schedule_request([EngineRequest(1, 30, 30), waiting], set())
    assert ids(output.fitting_disagg_gen_init_requests) == [0]
    assert output.context_requests == []
    assert output.num_fitting_requests == 0


class Newest(CapacityScheduler):
    """A pair instead of a triple, and no word about repetition."""

    def __init__(self, max_num_requests, kv_cache_manager):  # type: ignore[no-untyped-def]
        self.most = max_num_requests

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList]:
        return [request for request in active_requests if self.is_schedulable(request)][-self.most :], []


class Impatient(GuaranteedNoEvict):
    """A decision of its own under an inherited promise."""

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        return super().schedule_request(active_requests[::-1])


class PromptsOnly(MicroBatchScheduler):
    def schedule(self, active_requests: RequestList, inflight_request_ids: Any) -> tuple[RequestList, RequestList]:
        return [request for request in active_requests if request.is_context_init_state], []


def resources(**fields: Any) -> SchedulerResources:
    plain = {"max_num_requests": 2, "kv_cache_manager": KvCacheManager({100: 50}, 10), "max_batch_size": 2}
    return SchedulerResources(**{**plain, **fields})


def test_pairs_are_taken_and_names_are_supplied() -> None:
    scheduler = make_scheduler(f"{__name__}:Newest", resources())
    output = scheduler.schedule_request([EngineRequest(number, 10, 10) for number in range(3)], set())
    assert ids(output.context_requests) == [1, 2]
    assert not scheduler.repeats_its_answer


def test_an_inherited_promise_is_void_for_another_decision() -> None:
    assert make_scheduler("static-batch", resources()).repeats_its_answer
    assert not make_scheduler(f"{__name__}:Impatient", resources()).repeats_its_answer
    assert not make_scheduler("max-utilization(two_step_lookahead=true)", resources()).repeats_its_answer


def test_a_stage_that_is_not_given_is_the_default() -> None:
    scheduler = make_scheduler(f"{__name__}:PromptsOnly", resources())
    assert isinstance(scheduler, SimpleScheduler)
    assert isinstance(scheduler.capacity_scheduler, GuaranteedNoEvict)
    output = scheduler.schedule_request([EngineRequest(0, 10, 10)], set())
    assert (ids(output.context_requests), output.generation_requests) == ([0], [])


def test_what_is_no_batch_scheduler_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"no batch scheduler \(a class that inherits from CapacityScheduler or Micro"):
        make_scheduler("maitred.core.request:Request", resources())
    with pytest.raises(ConfigError, match="did you mean 'static-batch'"):
        make_scheduler("static-bath", resources())
    with pytest.raises(ConfigError, match="has no parameter 'max_num_requests'"):
        make_scheduler("static-batch(max_num_requests=3)", resources())


@st.composite
def situations(draw: st.DrawFn, *, is_plain: bool = False) -> tuple[list[EngineRequest], SchedulerResources, set[int]]:
    """Draw active requests with their KV blocks, limits, and which of them are in flight. The requests are in all states, and
    may have adapters, drafts and beams; if `is_plain`, they are what our own scheduler serves."""
    states = [CONTEXT, GENERATING, LlmRequestState.GENERATION_TO_COMPLETE, LlmRequestState.GENERATION_COMPLETE]
    size = draw(st.sampled_from([1, 4, 10]))
    kv_cache = KvCacheManager({1000: draw(st.integers(60, 400))}, size, enable_block_reuse=draw(st.booleans()))
    active = []
    for number in range(draw(st.integers(0, 14))):
        prompt, prefix = draw(st.integers(1, 40)), draw(st.integers(0, 2))
        request = EngineRequest(
            number,
            prompt,
            draw(st.integers(1, 40)),
            state=draw(st.sampled_from([CONTEXT, CONTEXT, GENERATING, GENERATING, *(states if is_plain else LlmRequestState)])),
            lora_task_id=None if is_plain else draw(st.sampled_from([None, None, 1, 2])),
            num_draft_tokens=0 if is_plain else draw(st.sampled_from([0, 0, 1, 5])),
            beam_width=1 if is_plain else draw(st.sampled_from([1, 1, 1, 2])),
            priority=draw(st.sampled_from([0.5, 0.5, 0.9])),
        )
        if request.is_encoder_init_state:
            request.state = CONTEXT
        request.block_hashes = [hash((prefix, block)) for block in range(prompt // size)]
        is_started = request.is_generation_in_progress_state or draw(st.booleans())
        if is_started and kv_cache.free_blocks[0] >= (prompt // size + 2) * 2:
            kv_cache.add_sequence(request)
            computed = draw(st.integers(request.context_current_position, prompt))
            request.context_current_position = min(computed, prompt - 1) if request.is_context_init_state else prompt
        elif is_started:
            request.state = CONTEXT
        request.num_generated_tokens = int(request.is_generation_in_progress_state)
        request.context_chunk_size = request.context_remaining_length
        active.append(request)
    policy = draw(st.sampled_from([None, *ChunkingPolicy]))
    limits = resources(
        max_num_requests=draw(st.integers(1, 12)),
        kv_cache_manager=kv_cache,
        max_batch_size=draw(st.integers(1, 12)),
        max_num_tokens=draw(st.sampled_from([None, 12, 50, 300])),
        ctx_chunk_config=None if policy is None else ContextChunkingConfig(policy, size),
    )
    return active, limits, set(draw(st.lists(st.integers(0, 13), max_size=3)))


@given(st.data(), st.sampled_from(POLICIES))
@settings(max_examples=50, deadline=None)
def test_no_step_is_larger_than_its_limits(data: st.DataObject, name: str) -> None:
    active, limits, inflight = data.draw(situations(is_plain=name == "maitred"))
    free = list(limits.kv_cache_manager.free_blocks)
    given_requests = list(active)
    output = make_scheduler(name, limits).schedule_request(active, inflight)
    assert active == given_requests
    assert list(limits.kv_cache_manager.free_blocks) == free  # a decision changes no memory
    check_output(output, active, inflight, limits)
