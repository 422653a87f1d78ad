"""What fits in this step?

A batch former fills each step of an engine with work: a token for each sequence that decodes, chunks of prompts, as far as
the token budget, the sequence limit and the KV blocks go. It owns the running batch; the wait queue decides which sequence is
next, `kv` what memory is left, and the instance when a step begins and ends.

    running_batch.py      RunningBatch: the books of a batch, whoever plans its steps; StepPlan: what was decided about one
    limits.py             the limits of a step, and which sequence loses its KV
    vllm/                 steps as vLLM plans them
    trtllm/               schedulers of TensorRT-LLM's kind: capacity first, then the micro-batch
    batch_schedulers.py   the kind of plug-in, and how its parts become a scheduler
    maitred/              our own scheduler of that kind
    scheduler_batch.py    SchedulerBatch: an instance with steps that a scheduler decides, over instance_kv_cache.py;
                          active_requests.py: the requests that it decides about

The rooms do not know each other, but that `maitred` uses the interfaces and the arithmetic of `trtllm`. Steps by the rules of
SGLang and BLIS stand in `compat`, on the same books.
"""

from __future__ import annotations

from maitred.batching.batch_schedulers import BATCH_SCHEDULERS, SchedulerResources, make_scheduler
from maitred.batching.limits import BatchLimits, PreemptionPolicy, PrefillChunk, context_spread, later_chunks
from maitred.batching.running_batch import RunningBatch, StepPlan
from maitred.batching.scheduler_batch import SchedulerBatch
from maitred.batching.trtllm.capacity import GuaranteedNoEvict, MaxRequests, MaxUtilization, StaticBatch
from maitred.batching.trtllm.capacity_budgets import PeftCacheView
from maitred.batching.trtllm.context_chunking import (
    ChunkAssignment,
    ChunkingPolicy,
    ChunkLimits,
    ContextChunkingConfig,
    reuse_adjusted_cost,
)
from maitred.batching.trtllm.kv_cache_view import KvCacheView, ReleaseSimulation, ReusedPrefix
from maitred.batching.trtllm.llm_request import LlmRequest, LlmRequestState, RequestList
from maitred.batching.trtllm.micro_batch import TokenBudgetScheduler
from maitred.batching.trtllm.schedulers import (
    CapacityScheduler,
    MicroBatchResult,
    MicroBatchScheduler,
    RequestScheduler,
    SchedulerOutput,
    SimpleScheduler,
)
from maitred.batching.vllm.continuous import ContinuousBatch
from maitred.batching.vllm.plan_ahead import AheadBatch

__all__ = [
    "BATCH_SCHEDULERS",
    "AheadBatch",
    "BatchLimits",
    "CapacityScheduler",
    "ChunkAssignment",
    "ChunkLimits",
    "ChunkingPolicy",
    "ContextChunkingConfig",
    "ContinuousBatch",
    "GuaranteedNoEvict",
    "KvCacheView",
    "LlmRequest",
    "LlmRequestState",
    "MaxRequests",
    "MaxUtilization",
    "MicroBatchResult",
    "MicroBatchScheduler",
    "PeftCacheView",
    "PreemptionPolicy",
    "PrefillChunk",
    "ReleaseSimulation",
    "RequestList",
    "RequestScheduler",
    "ReusedPrefix",
    "RunningBatch",
    "SchedulerBatch",
    "SchedulerOutput",
    "SchedulerResources",
    "SimpleScheduler",
    "StaticBatch",
    "StepPlan",
    "TokenBudgetScheduler",
    "context_spread",
    "later_chunks",
    "make_scheduler",
    "reuse_adjusted_cost",
]
