"""The micro-batch stage alone: one call, traces with pipeline slots, and the assignment of chunks."""

from __future__ import annotations

from collections.abc import Iterator

from maitred.batching import (
    ChunkAssignment,
    ChunkingPolicy,
    ChunkLimits,
    ContextChunkingConfig,
    LlmRequestState,
    TokenBudgetScheduler,
    reuse_adjusted_cost,
)
from maitred.batching.trtllm.schedulers import micro_batch_lists

from .older_chunks import FixedUnitAssignment, additive_cost
from .requests import Case, EngineRequest, ids, request_of


def assignment_of(case: Case, *, has_snapshots: bool) -> ChunkAssignment:
    """Return the rules of the version from which a case was recorded. FORCE_CHUNK without snapshot points is the older one."""
    cost = additive_cost if str(case.get("rule_version", "")).startswith("additive") else reuse_adjusted_cost
    return ChunkAssignment(cost) if has_snapshots else FixedUnitAssignment(cost)


def scheduler_of(case: Case) -> TokenBudgetScheduler:
    config = case["config"]
    chunking = config.get("chunking")
    chunks = None if chunking is None else ContextChunkingConfig(ChunkingPolicy[chunking["policy"]], chunking["unit"])
    assignment = assignment_of(case, has_snapshots="snapshot_points" in config)
    return TokenBudgetScheduler(
        config["max_batch_size"], config["max_num_tokens"], chunks, config.get("max_context_length"), assignment
    )


def run_single(case: Case) -> Iterator[str]:
    """Make one call."""
    requests, expected = [request_of(each) for each in case["requests"]], case["expected"]
    for request in requests:
        request.snapshot_points = case["config"].get("snapshot_points", ())
    inflight = set(case["config"].get("inflight", ()))
    _, context, generation = micro_batch_lists(scheduler_of(case).schedule(requests, inflight))
    found = {"context": ids(context), "generation": ids(generation), "num_context": len(context)}
    for name, value in found.items():
        if name in expected and value != expected[name]:
            yield f"{name}: {expected[name]} expected, {value} found"
    by_id = {str(request.request_id): request for request in requests}
    scheduled = {request.request_id for request in context}
    for request_id, size in expected.get("chunk_sizes", {}).items():
        chunk = by_id[request_id].context_chunk_size if int(request_id) in scheduled else 0
        if chunk != size:
            yield f"chunk of {request_id}: {size} expected, {chunk} found"
    for request_id, drafts in expected.get("draft_tokens", {}).items():
        if by_id[request_id].num_draft_tokens != drafts:
            yield f"draft tokens of {request_id}: {drafts} expected, {by_id[request_id].num_draft_tokens} found"


def run_chunking(case: Case) -> Iterator[str]:
    """Assign chunks again and again, until all prompts are computed or as often as recorded."""
    config, expected = case["config"], case["expected"]
    limits = ChunkLimits(config["chunk_unit"], config["token_capacity"], config["max_context_length"])
    assignment = assignment_of(case, has_snapshots="snapshot_points" in config)
    requests = [EngineRequest(index, length, 1) for index, length in enumerate(case["context_lengths"])]
    for request, drafts in zip(requests, case["draft_lengths"], strict=True):
        request.num_draft_tokens = drafts
        request.snapshot_points = config.get("snapshot_points", ())
    for number, positions in enumerate(expected["positions_after_each_step"]):
        running = [request for request in requests if request.context_remaining_length]
        assignment.assign(ChunkingPolicy[case["policy"]], running, limits)
        for request in running:
            request.move_to_next_context_chunk()
        found = [request.context_current_position for request in requests]
        if found != positions:
            yield f"positions after step {number}: {positions} expected, {found} found"
    drafts, kept = expected.get("final_draft_lengths"), [request.num_draft_tokens for request in requests]
    if drafts is not None and kept != drafts:
        yield f"final draft lengths: {drafts} expected, {kept} found"


class MicroBatchTrace:
    """The engine of the traces: what is scheduled in a slot stays in flight until the slot comes again."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.scheduler = scheduler_of(case)
        self.slots = [list[EngineRequest]() for _ in range(case["config"]["num_pipeline_slots"])]
        self.active: list[EngineRequest] = []

    def step(self, number: int) -> dict[str, object]:
        slot = number % len(self.slots)
        self.slots[slot] = []
        self.active += [request_of(each) for each in self.case["requests"] if each.get("arrival_step", 0) == number]
        inflight = {request.request_id for requests in self.slots for request in requests}
        _, context, generation = micro_batch_lists(self.scheduler.schedule(self.active, inflight))
        for request in context:
            request.move_to_next_context_chunk()
            if not request.context_remaining_length:
                request.state, request.num_generated_tokens = LlmRequestState.GENERATION_IN_PROGRESS, 1
        for request in generation:
            request.num_generated_tokens += 1
        scheduled = [*context, *generation]
        self.slots[slot] = scheduled
        drafts = self.case.get("after_step_0_set_draft_tokens", self.case["config"].get("after_step_0_set_draft_tokens"))
        if number == 0 and drafts is not None:
            for request in self.active:
                request.num_draft_tokens = drafts
        self.active = [each for each in self.active if each.num_generated_tokens < each.max_new_tokens]
        return {
            "context": sorted(ids(context)),
            "generation": sorted(ids(generation)),
            "generated_after": {str(each.request_id): each.num_generated_tokens for each in scheduled},
            "context_pos_after": {str(each.request_id): each.context_current_position for each in scheduled},
            "draft_tokens": {str(each.request_id): each.num_draft_tokens for each in scheduled},
        }


def run_trace(case: Case) -> Iterator[str]:
    """Make the steps of a trace."""
    trace, recorded = MicroBatchTrace(case), {event["step"]: event for event in case["expected"]["events"]}
    for number in range(case["steps"]):
        found = trace.step(number)
        for name, value in recorded.get(number, {}).items():
            expected = sorted(value) if name in ("context", "generation") else value
            if name in found and found[name] != expected:
                yield f"step {number}, {name}: {expected} expected, {found[name]} found"
    if any(number >= case["steps"] for number in recorded):
        yield f"events up to step {max(recorded)}, and {case['steps']} steps"
