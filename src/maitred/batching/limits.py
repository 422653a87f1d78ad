"""The terms of a step: its limits, the choice of a preemption victim, a chunk of prefill, and the spread of contexts.

The spread is worked out only for latency models that read it (`instance.latency.SpreadAwareModel`), because it takes a look at
every sequence that decodes, once for each run of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import sqrt
from operator import mul

import msgspec

from maitred.core.contracts import ChunkShape, ContextSpread
from maitred.core.sequence import SequenceState


class BatchLimits(msgspec.Struct, frozen=True):
    """The limits of one step."""

    max_num_seqs: int
    """Sequences in the running batch."""
    max_num_batched_tokens: int
    """Tokens of all sequences: one for each that decodes, and those of the chunks."""
    long_prefill_token_threshold: int
    """Tokens of one chunk while other requests are here, or 0 if only `max_num_batched_tokens` limits them."""
    long_prefill_token_threshold_adaptive: bool = False
    """Whether a chunk may always have an equal share of `max_num_batched_tokens`, whatever the threshold is."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed in more than one step for want of tokens."""
    scheduler_reserve_full_isl: bool = True
    """Whether a sequence is admitted only when its whole prompt fits into the free blocks, and not only its first chunk."""
    watermark_blocks: int = 0
    """Blocks that stay free when a sequence is admitted beside others."""
    max_chunk_tokens: int = 0
    """Tokens of one chunk, whether or not other requests are here; 0: as many as `max_num_batched_tokens`."""
    goes_on_after_own_preemption: bool = False
    """Whether the running sequences after one that was preempted for want of its own blocks are served in the same step."""
    prefill_schedule_interval: int = 1
    """Steps from one with prefill to the next while others decode (`prefill_cadence`)."""


class PreemptionPolicy(Enum):
    """Which sequence is preempted when KV blocks run out."""

    LAST_ADMITTED = "fcfs"
    """The sequence that was admitted last. The value is vLLM's word: under first come, first served the last one gives way."""
    LOWEST_PRIORITY = "priority"
    """The sequence with the lowest priority; of equals the one that arrived last, and then that was admitted last (BLIS)."""
    LEAST_URGENT_CLIENT = "client"
    """The sequence with the client's lowest priority, whatever it was scored; of equals the one that arrived last, and then
    that was admitted first (vLLM with `scheduling_policy: priority`)."""

    def choose_victim(self, running: Sequence[SequenceState]) -> int:
        """Return the index of the victim in `running`, which is in the order of admission and not empty."""
        if self is PreemptionPolicy.LAST_ADMITTED:
            return len(running) - 1
        if self is PreemptionPolicy.LEAST_URGENT_CLIENT:
            return max(
                range(len(running)), key=lambda index: (-running[index].request.priority, running[index].request.arrival)
            )
        return max((-seq.priority, seq.request.arrival, index) for index, seq in enumerate(running))[2]


class PrefillChunk(ChunkShape, frozen=True, gc=False):
    """Prefill work of one sequence in one step."""

    seq: SequenceState


def later_chunks(chunks: Sequence[PrefillChunk], steps: int) -> list[PrefillChunk]:
    """Return `chunks` as they are `steps` steps later, if each step computes as many tokens of each prompt."""
    return [
        PrefillChunk(chunk.num_tokens, chunk.num_computed_tokens + chunk.num_tokens * steps, chunk.total_tokens, chunk.seq)
        for chunk in chunks
    ]


def context_spread(contexts: Sequence[int]) -> ContextSpread:
    """Return the spread of `contexts`, of which there is at least one."""
    count, total = len(contexts), sum(contexts)
    # In integers the spread is exact: adding a number to all contexts changes no bit of it. So the spread of the first step
    # of a run is that of all its steps, and skipping steps changes no result.
    squares = count * sum(map(mul, contexts, contexts)) - total * total
    return ContextSpread(
        (count * max(contexts) - total) / count, (total - count * min(contexts)) / count, sqrt(squares) / count
    )
