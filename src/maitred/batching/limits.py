"""What a step may hold, who gives way, and what a sequence does in it.

How far apart the contexts of a batch lie, for latency models to which that matters.

It takes a look at every sequence that decodes, once for each run of steps; so only those models pay for it that ask
(`instance.latency.SpreadAwareModel`). What follows is exact, and the same at every step of a run: differences of whole numbers.
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
    """What one step may hold. `long_prefill_token_threshold` 0: no limit on a chunk but the budget."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int


class PreemptionPolicy(Enum):
    """Who is preempted when KV blocks run out."""

    LAST_ADMITTED = "fcfs"
    """The last admitted."""
    LOWEST_PRIORITY = "priority"
    """The lowest `SequenceState.priority`, of equals the latest to arrive, of equals the last admitted (BLIS)."""

    def choose_victim(self, running: Sequence[SequenceState]) -> int:
        """The place of the victim in `running`, which is in order of admission and not empty."""
        if self is PreemptionPolicy.LAST_ADMITTED:
            return len(running) - 1
        return max((-seq.priority, seq.request.arrival, place) for place, seq in enumerate(running))[2]


class PrefillChunk(ChunkShape, frozen=True, gc=False):
    """Prefill work of one sequence in one step."""

    seq: SequenceState


def context_spread(contexts: Sequence[int]) -> ContextSpread:
    """Of at least one sequence. Adding a number to all `contexts` changes no bit of it."""
    count, total = len(contexts), sum(contexts)
    squares = count * sum(map(mul, contexts, contexts)) - total * total
    return ContextSpread(
        (count * max(contexts) - total) / count, (total - count * min(contexts)) / count, sqrt(squares) / count
    )
