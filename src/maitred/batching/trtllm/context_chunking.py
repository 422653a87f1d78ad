"""How the prompts in one step share its tokens: chunk sizes, and the draft tokens that are kept.

    FIRST_COME_FIRST_SERVED   each prompt in order takes what it wants of what is left
    EQUAL_PROGRESS            all prompts grow by a unit at a time, in rounds
    FORCE_CHUNK               each prompt stops at its next snapshot point, for models with a recurrent state

A chunk that does not end its prompt is a multiple of the unit, so that it ends on a block boundary. What a prompt finds in the
cache costs nothing, if the chunk reaches the end of the prompt (`reuse_adjusted_cost`).

Example: prompts of 25 and 25 tokens, 30 tokens in the step, units of 5. First come, first served gives 25 and 5, equal progress
15 and 15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from maitred.batching.trtllm.llm_request import LlmRequest

UNLIMITED: Final = 1 << 62
"""More tokens or steps than there ever are, for sums and comparisons without a case of their own."""
CostRule: TypeAlias = Callable[[int, int, int], int]


class ChunkingPolicy(IntEnum):
    """How prompts share the tokens of a step; the numbers are TensorRT-LLM's."""

    EQUAL_PROGRESS = 1
    FIRST_COME_FIRST_SERVED = 2
    FORCE_CHUNK = 3


class ContextChunkingConfig(msgspec.Struct, frozen=True):
    """How prompts are cut into chunks."""

    chunking_policy: ChunkingPolicy = ChunkingPolicy.FIRST_COME_FIRST_SERVED
    chunk_unit_size: int = 32
    """Tokens of which a chunk is a multiple, unless it ends its prompt."""

    def __post_init__(self) -> None:
        if self.chunk_unit_size < 1:
            raise ValueError(f"a chunk unit has at least 1 token, not {self.chunk_unit_size}")


class ChunkLimits(msgspec.Struct, frozen=True):
    """The limits of the chunks of one step, in tokens; None: no limit."""

    unit: int
    capacity: int | None = None
    """All chunks together."""
    max_context_length: int | None = None
    """One chunk."""

    @property
    def most_together(self) -> int:
        return UNLIMITED if self.capacity is None else self.capacity

    @property
    def most_each(self) -> int:
        return UNLIMITED if self.max_context_length is None else self.max_context_length

    def round_down(self, tokens: int) -> int:
        """Return the largest multiple of the unit that is at most `tokens`."""
        return tokens - tokens % self.unit


def reuse_adjusted_cost(chunk: int, reusable: int, remaining: int) -> int:
    """Return the tokens that are computed for a chunk of `chunk` tokens, if `reusable` of the `remaining` ones are cached."""
    # A chunk that ends before the prompt does is moved behind the cached tokens, and is not shorter for them.
    if reusable <= 0 or reusable + chunk < remaining:
        return chunk
    return max(0, remaining - reusable)


def reusable_tokens(request: LlmRequest) -> int:
    """Return the tokens that the next chunk of `request` is expected to find in the cache: only the first one finds any."""
    return request.estimated_reusable_tokens if request.is_first_context_chunk else 0


class ChunkAssignment:
    """The rules by which chunks are assigned."""

    def __init__(self, cost: CostRule = reuse_adjusted_cost) -> None:
        """`cost` is what a chunk costs: its tokens, the reusable ones and the remaining ones are its arguments."""
        self.cost_of = cost
        self._policies: Mapping[ChunkingPolicy, Callable[[Sequence[LlmRequest], ChunkLimits], None]] = {
            ChunkingPolicy.EQUAL_PROGRESS: self.equal_progress,
            ChunkingPolicy.FIRST_COME_FIRST_SERVED: self.first_come_first_served,
            ChunkingPolicy.FORCE_CHUNK: self.force_chunk,
        }

    def cost(self, request: LlmRequest, chunk: int) -> int:
        """Return the tokens that a chunk of `request` takes from the budget."""
        return self.cost_of(chunk, reusable_tokens(request), request.context_remaining_length)

    def assign(self, policy: ChunkingPolicy, requests: Sequence[LlmRequest], limits: ChunkLimits) -> None:
        """Set the chunk of each of `requests`, which are in their prompt, and drop the draft tokens that do not fit."""
        for request in requests:
            request.context_chunk_size = 0
        self._policies[policy](requests, limits)
        self.fit_draft_tokens(requests, limits)

    def equal_progress(self, requests: Sequence[LlmRequest], limits: ChunkLimits) -> None:
        """Let all prompts grow by a unit in each round; one that would not fit stays, and the others go on."""
        total, most = 0, limits.most_together
        progress = True
        while progress and total < most:
            progress = False
            for request in requests:
                chunk = request.context_chunk_size
                larger = min(chunk + limits.unit, request.context_remaining_length)
                grown = total + self.cost(request, larger) - self.cost(request, chunk)
                if larger > chunk and grown <= most and larger <= limits.most_each:
                    request.context_chunk_size, total, progress = larger, grown, True

    def first_come_first_served(self, requests: Sequence[LlmRequest], limits: ChunkLimits) -> None:
        """Give each prompt in order what it wants of what is left."""
        left = limits.most_together
        for request in requests:
            wanted = chunk = request.context_remaining_length
            if self.cost(request, chunk) > left:
                chunk = left
            if self.cost(request, chunk) > limits.most_each:
                chunk = min(limits.most_each, wanted)
            if chunk < wanted:
                chunk = limits.round_down(chunk)
            request.context_chunk_size = chunk
            left -= self.cost(request, chunk)

    def force_chunk(self, requests: Sequence[LlmRequest], limits: ChunkLimits) -> None:
        """End each chunk at the next snapshot point. Raises ValueError if a unit is longer than a chunk may be."""
        if limits.most_each < limits.unit:
            raise ValueError(f"a chunk of at most {limits.most_each} tokens does not hold a unit of {limits.unit}")
        left = limits.most_together
        for request in requests:
            position = request.context_current_position
            end = next((point for point in request.snapshot_points if point > position), request.prompt_len)
            chunk = min(end, request.prompt_len) - position
            for most in (limits.most_each, left):
                if chunk > most:
                    chunk = limits.round_down(most)
            request.context_chunk_size = chunk
            left -= chunk

    def fit_draft_tokens(self, requests: Sequence[LlmRequest], limits: ChunkLimits) -> None:
        """Drop the draft tokens of last chunks that would cost a further unit, or that do not fit into the limits."""
        total = sum(self.cost(request, request.context_chunk_size) for request in requests)
        for request in requests:
            # Only with its last chunk does a request generate, and so verify a draft.
            if not (request.is_last_context_chunk and request.num_draft_tokens):
                continue
            chunk = request.context_chunk_size
            space = -chunk % limits.unit
            space = min(space, max(0, limits.most_each - chunk))
            kept = min(request.num_draft_tokens, space, max(0, limits.most_together - total))
            total += kept
            request.num_draft_tokens = kept
