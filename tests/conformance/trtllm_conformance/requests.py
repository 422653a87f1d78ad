"""Requests and caches as the cases describe them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from maitred.batching import KvCacheView, LlmRequest, LlmRequestState, ReleaseSimulation, ReusedPrefix

Case = Mapping[str, Any]


class EngineRequest(LlmRequest):
    """A request with what its engine knows of it and does with it."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.block_hashes: Sequence[int] = ()
        """Hashes of the full blocks of the prompt, first block first; empty if nothing is known of its content."""

    def move_to_next_context_chunk(self) -> None:
        """Note that the chunk is computed."""
        self.context_current_position += self.context_chunk_size

    def pause(self, max_input_len: int) -> None:
        """Note that its KV is lost. The tokens generated so far are appended to the prompt, as far as it stays within
        `max_input_len`; with several beams they are lost."""
        kept = max(0, min(self.num_generated_tokens, max_input_len - self.prompt_len)) if self.beam_width == 1 else 0
        self.prompt_len += kept
        self.num_tokens_before += kept
        self.max_new_tokens -= kept
        self.num_pauses += 1
        self.num_shared_blocks = 0
        self.num_generated_tokens = 0
        self.context_current_position = self.prepopulated_prompt_len = 0
        self.context_chunk_size = self.prompt_len
        self.estimated_reusable_tokens = 0
        self.state = LlmRequestState.CONTEXT_INIT


def request_of(described: Case) -> EngineRequest:
    """Return the request as it is before the first step. One that is described as generating has computed its prompt."""
    state = described.get("state", described.get("initial_state", "CONTEXT_INIT"))
    request = EngineRequest(
        described["id"],
        described.get("prompt_len", 10),
        described.get("max_new_tokens", 10),
        state=LlmRequestState[state],
        priority=described.get("priority", 0.5),
        lora_task_id=described.get("lora_task_id"),
        num_draft_tokens=described.get("draft_tokens", 0),
        beam_width=described.get("beam_width", 1),
        encoder_output_len=described.get("encoder_output_len", 0),
        is_multimodal=described.get("multimodal", False),
    )
    request.context_current_position = described.get("context_pos", 0)
    request.context_chunk_size = described.get("context_chunk_size", request.context_remaining_length)
    request.estimated_reusable_tokens = described.get("estimated_reusable_tokens", 0)
    if request.is_generation_in_progress_state:
        request.context_current_position, request.num_generated_tokens = request.prompt_len, 1
    if described.get("started_chunk"):
        request.context_current_position = 1
    return request


def insert_by_priority(active: list[LlmRequest], request: LlmRequest) -> None:
    """Insert `request` behind all requests of at least its priority, as TensorRT-LLM's executor does."""
    insort(active, request, key=lambda each: -each.priority)


def prompt_tokens(described: Case) -> list[Hashable]:
    """Return the tokens of the prompt; without a description all are equal."""
    count, tokens = described["prompt_len"], described.get("prompt_tokens")
    if tokens is None:
        return [0] * count
    if tokens["kind"] == "constant":
        return [tokens["value"]] * tokens["count"]
    return [*range(tokens["start"], tokens["start"] + tokens["count"]), *tokens.get("then", ())]


def block_hashes(tokens: Sequence[Hashable], size: int, adapter: int | None) -> list[int]:
    """Return a hash for each full block, which stands for all tokens up to its end and for the adapter."""
    hashes, before = [], hash(("adapter", adapter))
    for end in range(size, len(tokens) + 1, size):
        before = hash((before, *tokens[end - size : end]))
        hashes.append(before)
    return hashes


class AdapterCache:
    """Device memory for adapters that all take the same number of pages."""

    def __init__(self, config: Case) -> None:
        self.max_device_pages = config["max_device_pages"]
        self._pages = config["pages_per_task"]

    def determine_num_pages(self, request: LlmRequest) -> int:
        return 0 if request.lora_task_id is None else self._pages


class ConstantCostCache(KvCacheView):
    """KV memory in which each request costs the same. Pausing one frees nothing."""

    def __init__(self, config: Case, *, first_new_block: Case | None = None, block_reuse: bool = False) -> None:
        self.tokens_per_block = 1
        self.enable_block_reuse = block_reuse
        self._free = config["free_blocks"]
        self._cost = config["blocks_per_request"]
        self._first_new_block = first_new_block or {}

    @property
    def free_blocks(self) -> Sequence[int]:
        return (self._free,)

    def blocks_to_completion(self, request: LlmRequest, match: ReusedPrefix) -> Sequence[int]:
        return (self._cost,)

    def blocks_for_next_step(
        self, request: LlmRequest, match: ReusedPrefix, *, two_step_lookahead: bool = False
    ) -> Sequence[int]:
        return (self._cost,)

    def match_prefix(self, request: LlmRequest) -> ReusedPrefix:
        return ReusedPrefix(self._first_new_block.get(str(request.request_id)))

    def start_scheduling(self) -> ReleaseSimulation:
        return _NoReleases(self._free)

    def get_max_resource_count(self) -> int:
        return int(self._free)

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        return int(self._cost)


class _NoReleases(ReleaseSimulation):
    def __init__(self, free: int) -> None:
        self._free = free

    @property
    def free_blocks(self) -> Sequence[int]:
        return (self._free,)

    def release(self, request: LlmRequest) -> None:
        """Nothing is freed."""


def ids(requests: Sequence[LlmRequest]) -> list[int]:
    return [request.request_id for request in requests]
