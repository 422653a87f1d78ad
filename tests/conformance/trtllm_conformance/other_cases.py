"""Block arithmetic, queues, batch waiting and attention data parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from maitred.batching import (
    LlmRequest,
    reuse_adjusted_cost,
)
from maitred.batching.trtllm.batch_waiting import BatchWaiting, PromptTokens

from .attention_dp import ContextBalance, RankRequest, RankState, route_to_ranks
from .block_needs import (
    BlockGeometry,
    SequenceNeed,
    blocks_of_first_chunk,
    blocks_of_generation_step,
    blocks_to_completion,
)
from .requests import Case, ids, insert_by_priority
from .waiting_queue import create_waiting_queue

_NO_WINDOW = 1 << 40


def run_formula(case: Case) -> Iterator[str]:
    """Work out one number."""
    found = _formula(case["input"])
    if found != case["expected"]:
        yield f"{case['input']['fn']}: {case['expected']} expected, {found} found"


def _formula(given: Case) -> int:
    name = given["fn"]
    if name == "reuse_adjusted_cost":
        return reuse_adjusted_cost(given["chunk"], given["reusable"], given["context_remaining"])
    need = SequenceNeed(
        given["prompt_len"], given.get("max_new_tokens", 0), given.get("beam_width", 1), given.get("draft_tokens", 0)
    )
    window = given.get("window", given.get("max_tokens_in_window", _NO_WINDOW))
    geometry = BlockGeometry(given["tokens_per_block"], window)
    reusable = given.get("reusable_blocks", given.get("reusable", 0))
    if name == "blocks_to_completion":
        return blocks_to_completion(need, geometry, given.get("allocated_blocks_per_beam", 0), reusable)
    if name == "blocks_one_step_first_chunk":
        return blocks_of_first_chunk(need, geometry, reusable)
    if name == "blocks_one_step_generation":
        ahead = given.get("two_step_lookahead", False)
        return blocks_of_generation_step(need, geometry, given["tokens_in_cache"], two_step_lookahead=ahead)
    raise ValueError(f"no formula is called {name!r}")


def run_priority_insert(case: Case) -> Iterator[str]:
    """Insert requests one by one."""
    active: list[LlmRequest] = []
    for each in case["insertions"]:
        insert_by_priority(active, LlmRequest(each["id"], 1, 1, priority=each["priority"]))
    if ids(active) != case["expected"]["order"]:
        yield f"order: {case['expected']['order']} expected, {ids(active)} found"


def run_waiting_queue(case: Case) -> Iterator[str]:
    """Do the operations, and compare what is popped."""
    queue, popped = create_waiting_queue(case["policy"]), []
    for operation, *arguments in case["operations"]:
        if operation == "add":
            queue.add(LlmRequest(arguments[0], 1, 1, priority=arguments[1]))
        elif operation == "prepend":
            queue.prepend([LlmRequest(request_id, 1, 1, priority=priority) for request_id, priority in arguments[0]])
        elif operation == "remove":
            queue.remove(arguments[0])
        elif operation == "pop":
            popped.append(queue.pop().request_id)
        else:
            raise ValueError(f"no operation is called {operation!r}")
    if popped != case["expected"]["popped"]:
        yield f"popped: {case['expected']['popped']} expected, {popped} found"


def run_batch_waiting(case: Case) -> Iterator[str]:
    config = case["config"]
    waiting = BatchWaiting(
        config["max_num_tokens"],
        config["max_tokens_ratio"],
        config["timeout_iters"],
        require_generation=config["require_generation"],
    )
    found = []
    for step in case["steps"]:
        prompts = [PromptTokens(each["tokens"], each["reusable"], each["first_chunk"]) for each in step["context"]]
        found.append("run" if waiting.runs(prompts, [1 + step.get("draft_tokens", 0)] * step["num_generation"]) else "wait")
    if found != case["expected"]["decisions"]:
        yield f"decisions: {case['expected']['decisions']} expected, {found} found"


def run_adp_balance(case: Case) -> Iterator[str]:
    config = case["config"]
    balance = ContextBalance(config["max_batch_size"], config["timeout_iters"], config["batching_wait_iters"])
    found = ["release" if balance.releases(step["ctx"], step["gen"]) else "hold" for step in case["steps"]]
    if found != case["expected"]["decisions"]:
        yield f"decisions: {case['expected']['decisions']} expected, {found} found"


def run_adp_router(case: Case) -> Iterator[str]:
    ranks = [RankState(each["active_requests"], each["active_tokens"]) for each in case["ranks"]]
    requests = [
        RankRequest(each["id"], each["tokens"], each.get("target"), each.get("relax", True)) for each in case["requests"]
    ]
    given, expected = route_to_ranks(ranks, requests, case["max_active_per_rank"]), case["expected"]
    per_rank = [[request.request_id for request in rank] for rank in given.per_rank]
    if per_rank != expected["per_rank"]:
        yield f"per_rank: {expected['per_rank']} expected, {per_rank} found"
    if given.expected_active_requests != expected["expected_active_per_rank"]:
        active = given.expected_active_requests
        yield f"expected_active_per_rank: {expected['expected_active_per_rank']} expected, {active} found"
