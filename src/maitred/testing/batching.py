"""What every batch scheduler promises, whatever it prefers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from maitred.batching import (
    BATCH_SCHEDULERS,
    ContextChunkingConfig,
    KvCacheView,
    LlmRequest,
    LlmRequestState,
    ReleaseSimulation,
    ReusedPrefix,
    SchedulerOutput,
    SchedulerResources,
    make_scheduler,
)
from maitred.batching.trtllm.context_chunking import reusable_tokens, reuse_adjusted_cost
from maitred.batching.trtllm.kv_cache_view import NO_MATCH
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.testing.samples import blaming

_STATES = (LlmRequestState.CONTEXT_INIT, LlmRequestState.GENERATION_IN_PROGRESS, LlmRequestState.GENERATION_COMPLETE)


def check_batch_scheduler(scheduler: str, *, seeds: int = 20) -> None:
    """Raise AssertionError unless `scheduler`, as users write it, keeps to its limits in one step, and serves every request of
    an instance to its end, with the same results whether steps are skipped or not."""
    BATCH_SCHEDULERS.get(scheduler)
    for seed in range(seeds):
        with blaming(scheduler, seed):
            check_one_step(scheduler, seed)
            assert _events(scheduler, seed, step_by_step=False) == _events(scheduler, seed, step_by_step=True), (
                "skipping steps changes results: repeats_its_answer is True, and its answer changes while requests generate"
            )


class CountedKvCache(KvCacheView):
    """KV memory of which only the blocks are counted: no two requests share any."""

    def __init__(self, total: int, tokens_per_block: int) -> None:
        """`total` is in blocks."""
        self.tokens_per_block = tokens_per_block
        self._total = total
        self._held: dict[int, int] = {}
        """Blocks of each request that has begun."""

    @property
    def free_blocks(self) -> Sequence[int]:
        return (self._total - sum(self._held.values()),)

    def hold_prompt(self, request: LlmRequest) -> None:
        """Give `request` the blocks of its prompt."""
        self._held[request.request_id] = self._blocks_for(request.prompt_len)

    def num_held(self, request: LlmRequest) -> int:
        """Return the blocks of `request`."""
        return self._held.get(request.request_id, 0)

    def get_max_resource_count(self) -> int:
        return self._total

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        return self._blocks_for(request.prompt_len + request.max_new_tokens)

    def blocks_to_completion(self, request: LlmRequest, match: ReusedPrefix) -> Sequence[int]:
        return (self.get_needed_resource_to_completion(request) - self.num_held(request),)

    def blocks_for_next_step(
        self, request: LlmRequest, match: ReusedPrefix, *, two_step_lookahead: bool = False
    ) -> Sequence[int]:
        tokens = request.prompt_len
        if request.is_generation_in_progress_state:
            cached = request.num_tokens - 1  # the token that came out last has no KV yet
            tokens = min(cached + (2 if two_step_lookahead else 1), request.prompt_len + request.max_new_tokens)
        return (max(0, self._blocks_for(tokens) - self.num_held(request)),)

    def match_prefix(self, request: LlmRequest) -> ReusedPrefix:
        return NO_MATCH

    def start_scheduling(self) -> ReleaseSimulation:
        return _CountedReleases(self)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_block)


class _CountedReleases(ReleaseSimulation):
    def __init__(self, kv_cache: CountedKvCache) -> None:
        self._kv_cache = kv_cache
        self._released = 0

    @property
    def free_blocks(self) -> Sequence[int]:
        return (self._kv_cache.free_blocks[0] + self._released,)

    def release(self, request: LlmRequest) -> None:
        self._released += self._kv_cache.num_held(request)


def _random_resources(rng: Random, kv_cache: CountedKvCache) -> SchedulerResources:
    return SchedulerResources(
        max_num_requests=rng.randint(1, 12),
        kv_cache_manager=kv_cache,
        max_batch_size=rng.randint(1, 12),
        max_num_tokens=rng.choice([16, 40, 400]),
        ctx_chunk_config=ContextChunkingConfig(chunk_unit_size=16),
    )


def check_one_step(scheduler: str, seed: int) -> None:
    """Check the answer about some active requests, of which some are in flight."""
    rng = Random(seed)
    kv_cache = CountedKvCache(200, 16)
    resources = _random_resources(rng, kv_cache)
    active = [_request(rng, number, kv_cache) for number in range(rng.randint(1, 20))]
    given, inflight = list(active), {request.request_id for request in active if rng.random() < 0.2}
    output = make_scheduler(scheduler, resources).schedule_request(active, inflight)
    assert active == given, "the list of active requests is changed"
    check_output(output, active, inflight, resources)


def _num_computed_tokens(output: SchedulerOutput) -> int:
    computed = [
        reuse_adjusted_cost(request.context_chunk_size, reusable_tokens(request), request.context_remaining_length)
        for request in output.context_requests
    ]
    return sum(computed) + sum(request.beam_width + request.num_draft_tokens for request in output.generation_requests)


def check_output(output: SchedulerOutput, active: list[LlmRequest], inflight: set[int], resources: SchedulerResources) -> None:
    """Check that `output` stays within its limits, and names requests that may be named, each in one place."""
    scheduled = [*output.encoder_requests, *output.context_requests, *output.generation_requests]
    named = [*scheduled, *output.paused_requests, *output.fitting_disagg_gen_init_requests]
    assert len({id(request) for request in named}) == len(named), "a request is named twice"
    assert {id(request) for request in named} <= {id(request) for request in active}, "a request is named that is not active"
    assert not inflight & {request.request_id for request in scheduled}, "a request is scheduled that is in flight"
    assert len(scheduled) <= resources.max_batch_size, f"{len(scheduled)} requests are scheduled"
    assert all(request.state < LlmRequestState.GENERATION_TO_COMPLETE for request in scheduled), "a complete request runs"
    assert all(request.is_started for request in output.paused_requests), "a request is paused that has not begun"
    chunks = [request.context_chunk_size for request in output.context_requests]
    assert all(chunk > 0 for chunk in chunks), f"chunks of {chunks} tokens"
    tokens = _num_computed_tokens(output)
    assert resources.max_num_tokens is None or tokens <= resources.max_num_tokens, f"{tokens} tokens are scheduled"


def _request(rng: Random, number: int, kv_cache: CountedKvCache) -> LlmRequest:
    """Return a request that waits, computes its prompt, generates or is complete, with its blocks."""
    request = LlmRequest(number, rng.randint(1, 100), rng.randint(1, 100), state=rng.choice(_STATES))
    if request.state == LlmRequestState.GENERATION_IN_PROGRESS:
        kv_cache.hold_prompt(request)
        request.context_current_position, request.num_generated_tokens = request.prompt_len, 1
    elif request.state == LlmRequestState.CONTEXT_INIT and request.prompt_len > 16 and rng.random() < 0.3:
        kv_cache.hold_prompt(request)
        request.context_current_position = 16
    request.context_chunk_size = request.context_remaining_length
    return request


def _events(scheduler: str, seed: int, *, step_by_step: bool) -> list[tuple[int, str, int]]:
    """Return the outcomes of some requests in an instance with little memory."""
    rng = Random(seed)
    config = InstanceConfig(
        batching=scheduler,
        max_num_seqs=rng.choice([2, 8, 64]),
        max_num_batched_tokens=rng.choice([32, 256]),
        total_kv_blocks=rng.choice([16, 40]),
        latency=LinearLatency((100, 1, 10)),
        step_by_step=step_by_step,
    )
    instance, now = Instance(config, Random(0)), 0
    events: list[tuple[int, str, int]] = []
    requests = rng.randint(1, 25)
    for number in range(requests):
        gap = rng.choice([0, 50, 2000])
        now += gap
        while gap and (due := instance.next_event()) is not None and due < now:  # ask when all inputs of an instant are in
            events += _advance(instance, due)
        events += _advance(instance, now)
        answer = rng.randint(1, 60)
        request = Request(id=number, arrival=now, prompt_tokens=rng.randint(1, 120), max_output_tokens=answer)
        instance.enqueue(request, answer, now)
    while (due := instance.next_event()) is not None:
        events += _advance(instance, due)
    finished = [number for _, kind, number in events if kind == "FINISHED"]
    assert sorted(finished) == [*range(requests)], f"requests {finished} of {requests} are complete"
    return events


def _advance(instance: Instance, to: Micros) -> list[tuple[int, str, int]]:
    """Return the events up to an instant, as (at, kind, request), and check the ledgers."""
    events = [(event.at, event.kind.name, event.seq.request.id) for event in instance.advance(to)]
    instance.check()
    return events
