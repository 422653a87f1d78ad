"""The capacity stage alone: one call over constant costs, and traces over KV memory with prefix reuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from maitred.batching import (
    CapacityScheduler,
    GuaranteedNoEvict,
    KvCacheView,
    LlmRequestState,
    MaxRequests,
    StaticBatch,
)
from maitred.batching.trtllm.schedulers import capacity_lists
from maitred.compat.trtllm import StrictMaxUtilization

from .kv_cache_manager import CrossKvCacheManager, KvCacheManager
from .requests import (
    AdapterCache,
    Case,
    ConstantCostCache,
    EngineRequest,
    block_hashes,
    ids,
    insert_by_priority,
    prompt_tokens,
    request_of,
)


def scheduler_of(case: Case, kv_cache: KvCacheView | None, cross: KvCacheView | None) -> CapacityScheduler:
    """Return the policy of a case. Without KV memory it is MAX_REQUESTS, whatever is configured."""
    config = case["config"]
    most, adapters = config["max_num_requests"], AdapterCache(config["peft"]) if config.get("peft") else None
    if kv_cache is None or case["policy"] == "MAX_REQUESTS":
        return MaxRequests(most)
    if case["policy"] == "MAX_UTILIZATION":
        ahead = config.get("two_step_lookahead", False)
        return StrictMaxUtilization(most, kv_cache, adapters, cross, two_step_lookahead=ahead)
    policy = {"GUARANTEED_NO_EVICT": GuaranteedNoEvict, "STATIC_BATCH": StaticBatch}[case["policy"]]
    return policy(most, kv_cache, adapters, cross)


def run_single(case: Case) -> Iterator[str]:
    """Make one call."""
    config = case["config"]
    cross = ConstantCostCache(config["cross"]) if config.get("cross") else None
    kv_cache = None
    if config["free_blocks"] is not None:
        # The cross cache of these cases shares nothing, so it does not switch off the delay of duplicates.
        kv_cache = ConstantCostCache(config, first_new_block=config["first_new_block_key"], block_reuse=config["block_reuse"])
    result = scheduler_of(case, kv_cache, cross).schedule_request([request_of(each) for each in case["requests"]])
    for name, requests in zip(("fitting", "disagg", "paused"), capacity_lists(result), strict=True):
        if name in case["expected"] and ids(requests) != case["expected"][name]:
            yield f"{name}: {case['expected'][name]} expected, {ids(requests)} found"


class CapacityTrace:
    """The engine of the traces: every scheduled request runs in every step, in ascending id."""

    def __init__(self, case: Case) -> None:
        config = case["config"]
        size, window = config["tokens_per_block"], config["attention_window"]
        self.config = config
        self.kv_cache = KvCacheManager({window: config["num_blocks"]}, size, enable_block_reuse=config["block_reuse"])
        self.cross: CrossKvCacheManager | None = None
        if config.get("cross"):
            described = config["cross"]
            blocks = {described["attention_window"]: described["num_blocks"]}
            self.cross = CrossKvCacheManager(blocks, described["tokens_per_block"])
        self.scheduler = scheduler_of(case, self.kv_cache, self.cross)
        self.arrivals = list(case["requests"])
        self.tokens = {each["id"]: prompt_tokens(each) for each in self.arrivals}
        self.chunks = {each["id"]: each.get("context_chunk_size") for each in self.arrivals}
        self.active: list[EngineRequest] = []
        self.reused_blocks = 0

    def step(self, number: int) -> Mapping[str, Any]:
        """Make one step. Return what is recorded of it, with the requests as they were before it."""
        self._arrive(number)
        active = ids(self.active)
        fitting, disagg, paused = capacity_lists(self.scheduler.schedule_request(self.active))
        before = {each.request_id: _numbers(each) for each in (*fitting, *disagg)}
        for request in paused:
            self._pause(request)
        finished = [each for each in sorted(fitting, key=lambda each: each.request_id) if self._advance(each)]
        for request in disagg:
            self._start_disagg(request)
        for request in finished:
            self.active.remove(request)
        self.kv_cache.check()
        lists = {"active": active, "scheduled": ids(fitting), "paused": ids(paused), "finished": ids(finished)}
        return {**lists, "disagg_init": ids(disagg), "before": before}

    def _arrive(self, number: int) -> None:
        for described in [each for each in self.arrivals if each.get("arrival_step", 0) == number]:
            request = request_of(described)
            self._set_hashes(request)
            if self.config["insert_by_priority"]:
                insert_by_priority(self.active, request)
            else:
                self.active.append(request)

    def _set_hashes(self, request: EngineRequest) -> None:
        tokens = self.tokens[request.request_id]
        request.block_hashes = block_hashes(tokens, self.config["tokens_per_block"], request.lora_task_id)

    def _pause(self, request: EngineRequest) -> None:
        self._free(request)
        before = request.prompt_len
        request.pause(self.config["max_input_len_on_pause"])
        self.chunks[request.request_id] = None
        generated = [("generated", request.request_id, index) for index in range(before, request.prompt_len)]
        self.tokens[request.request_id] += generated
        self._set_hashes(request)

    def _free(self, request: EngineRequest) -> None:
        self.kv_cache.remove_sequence(request)
        if self.cross is not None:
            self.cross.remove_sequence(request)

    def _advance(self, request: EngineRequest) -> bool:
        """Run `request` for one step. Return whether it is complete."""
        if request.is_context_init_state:
            if request.is_first_context_chunk:
                self._add(request)
            request.context_chunk_size = min(self._chunk_of(request), request.context_remaining_length)
            request.move_to_next_context_chunk()
            if request.context_remaining_length:
                return False
            self.kv_cache.store_context(request)
            request.state = LlmRequestState.GENERATION_IN_PROGRESS
        else:
            self.kv_cache.add_token(request)
        request.num_generated_tokens += 1
        if request.num_generated_tokens < request.max_new_tokens:
            return False
        self._free(request)
        return True

    def _chunk_of(self, request: EngineRequest) -> int:
        return self.chunks[request.request_id] or request.prompt_len

    def _add(self, request: EngineRequest) -> None:
        self.reused_blocks += self.kv_cache.add_sequence(request)
        if self.cross is not None:
            self.cross.add_sequence(request)

    def _start_disagg(self, request: EngineRequest) -> None:
        self._add(request)
        request.context_current_position = request.prompt_len
        request.state, request.num_generated_tokens = LlmRequestState.GENERATION_IN_PROGRESS, 1


def run_trace(case: Case) -> Iterator[str]:
    """Make the steps of a trace until no request is left."""
    trace, steps = CapacityTrace(case), list[Mapping[str, Any]]()
    last_arrival = max((each.get("arrival_step", 0) for each in case["requests"]), default=0)
    most = case["expected"]["total_steps"] + 100
    while len(steps) <= last_arrival or (trace.active and len(steps) < most):
        steps.append(trace.step(len(steps)))
    expected = case["expected"]
    yield from _differences_of_events(expected.get("replayed_events", ()), steps)
    yield from _differences_of_segments(expected.get("upstream_segments", ()), steps, expected["total_steps"])
    if len(steps) != expected["total_steps"]:
        yield f"total_steps: {expected['total_steps']} expected, {len(steps)} found"
    finish = {str(each): number for number, step in enumerate(steps) for each in step["finished"]}
    if finish != expected.get("finish_step", finish):
        yield f"finish_step: {expected['finish_step']} expected, {finish} found"
    reused, total, least = trace.reused_blocks, expected.get("total_reused_blocks"), expected.get("min_reused_blocks", 0)
    if reused != (reused if total is None else total) or reused < (least or 0):
        yield f"reused blocks: {total if total is not None else least} expected, {reused} found"


def _differences_of_events(events: list[Case], steps: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the differences at the steps that are recorded. Between two of them nothing is scheduled otherwise, paused or
    finished."""
    recorded = {event["step"]: event for event in events}
    scheduled: list[int] | None = None
    for number, step in enumerate(steps):
        event = recorded.get(number)
        if event is None:
            if scheduled is not None and (step["scheduled"] != scheduled or step["paused"] or step["finished"]):
                yield f"step {number}: nothing new expected, {step['scheduled']} scheduled, {step['paused']} paused"
            continue
        for name in ("active", "scheduled", "paused", "finished", "disagg_init"):
            if name in event and step[name] != event[name]:
                yield f"step {number}, {name}: {event[name]} expected, {step[name]} found"
        scheduled = event["scheduled"]
    if any(number >= len(steps) for number in recorded):
        yield f"events up to step {max(recorded)} expected, {len(steps)} steps found"


def _differences_of_segments(segments: list[Case], steps: list[Mapping[str, Any]], total: int) -> Iterator[str]:
    """Yield the differences from what upstream states. Its last segments may go beyond the step in which all is complete."""
    for segment in segments:
        first, end = segment["from_step"], min(segment["to_step"], total)
        numbers = {each["id"]: {k: v for k, v in each.items() if k != "id"} for each in segment["scheduled"]}
        for number in range(first, end):
            step = steps[number] if number < len(steps) else {"active": None, "scheduled": (), "disagg_init": ()}
            if step["active"] != segment["active"]:
                yield f"step {number}, active: {segment['active']} expected, {step['active']} found"
            elif set(step["scheduled"]) != set(numbers):
                yield f"step {number}, scheduled: {sorted(numbers)} expected, {sorted(step['scheduled'])} found"
            elif set(step["disagg_init"]) != set(segment.get("disagg_init_scheduled", ())):
                yield f"step {number}, disagg_init: {segment['disagg_init_scheduled']} expected, {step['disagg_init']} found"
            elif number == first:
                yield from _differences_of_numbers(number, numbers, step["before"])


def _differences_of_numbers(number: int, expected: Case, found: Case) -> Iterator[str]:
    for request_id, numbers in expected.items():
        if found[request_id] != numbers:
            yield f"step {number}, request {request_id}: {numbers} expected, {found[request_id]} found"


def _numbers(request: EngineRequest) -> dict[str, int]:
    return {
        "max_new_tokens": request.max_new_tokens,
        "prompt_len": request.prompt_len,
        "generated": request.num_generated_tokens,
        "context_pos": request.context_current_position,
    }
