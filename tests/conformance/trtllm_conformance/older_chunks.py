"""TensorRT-LLM's rules of chunk sizes before 2026, from which some cases were recorded.

What is cached was subtracted from each chunk (`additive_cost`), and FORCE_CHUNK took one unit at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.batching import ChunkAssignment, ChunkLimits, LlmRequest


def additive_cost(chunk: int, reusable: int, remaining: int) -> int:
    """Return the tokens that a chunk costs by the older rule: those beyond the cached ones."""
    return max(0, chunk - reusable)


class FixedUnitAssignment(ChunkAssignment):
    """The older FORCE_CHUNK: one unit of each prompt in each step, where it fits."""

    def force_chunk(self, requests: Sequence[LlmRequest], limits: ChunkLimits) -> None:
        left = limits.most_together
        for request in requests:
            chunk = min(request.context_remaining_length, limits.unit)
            request.context_chunk_size = chunk if chunk <= left else 0
            left -= request.context_chunk_size
