"""Rules of TensorRT-LLM that ours do not follow, for comparing with it.

* MaxUtilization: a new request that does not fit pauses a victim and is tried again. With reuse it then finds its own promise
  of its first new block, and waits for itself: the victim was paused for nothing, and the step may be empty.
* Chunks before 2026: what is cached was subtracted from each chunk (`additive_cost`), and FORCE_CHUNK took one unit at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from maitred.batching import BATCH_SCHEDULERS, ChunkAssignment, ChunkLimits, LlmRequest, MaxUtilization


@BATCH_SCHEDULERS.register("trtllm-max-utilization")
class StrictMaxUtilization(MaxUtilization):
    """As max-utilization, but a request that has made another one pause may wait for its own first block."""

    skips_own_promise: ClassVar[bool] = True


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
