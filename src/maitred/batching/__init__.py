"""What fits in this step?

A batch former fills each step of an engine with work: a token for each sequence that decodes, chunks of prompts, as far as
the token budget, the sequence limit and the KV blocks go. It owns the running batch; the wait queue decides which sequence is
next, `kv` what memory is left, and the instance when a step begins and ends.
"""

from __future__ import annotations

from maitred.batching.continuous import ContinuousBatch, StepPlan
from maitred.batching.limits import BatchLimits, PreemptionPolicy, PrefillChunk, context_spread

__all__ = [
    "BatchLimits",
    "ContinuousBatch",
    "PreemptionPolicy",
    "PrefillChunk",
    "StepPlan",
    "context_spread",
]
