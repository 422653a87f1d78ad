"""What a step may hold, who gives way, and what a sequence does in it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from maitred.contracts import ChunkShape
from maitred.seq import Seq


class BatchLimits(msgspec.Struct, frozen=True):
    """What one step may hold. `long_prefill_token_threshold` 0: no limit on a chunk but the budget."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int


class Victims(Enum):
    """Who is preempted when KV blocks run out."""

    NEWEST = "fcfs"
    """The last admitted."""
    LEAST_URGENT = "priority"
    """The lowest `Seq.priority`, of equals the latest to arrive, of equals the last admitted (BLIS)."""

    def choose(self, running: Sequence[Seq]) -> int:
        """The place of the victim in `running`, which is in order of admission and not empty."""
        if self is Victims.NEWEST:
            return len(running) - 1
        return max((-seq.priority, seq.request.arrival, place) for place, seq in enumerate(running))[2]


class Chunk(ChunkShape, frozen=True, gc=False):
    """Prefill work of one sequence in one step."""

    seq: Seq
