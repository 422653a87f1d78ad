"""What fits in this step?

A batch former fills each step of an engine with work: a token for each sequence that decodes, chunks of prompts, as far as
the token budget, the sequence limit and the KV blocks go. It owns the running batch; the wait queue decides which sequence is
next, `kv` what memory is left, and the instance when a step begins and ends.

    running_batch.py      RunningBatch: the books of a batch, whoever plans its steps; StepPlan: what was decided about one
    continuous.py         ContinuousBatch: as vLLM plans its steps; plan_ahead.py: the same one step ahead;
                          prefill_cadence.py: when it computes no prompts
    limits.py             the limits of a step, and which sequence loses its KV
    schedulers.py         the interfaces of TensorRT-LLM: capacity first, then the micro-batch; llm_request.py: a request as
                          they see it
    capacity.py           its capacity policies, on block_needs.py (arithmetic) and capacity_budgets.py (what a pass counts)
    micro_batch.py        the requests of a step, with the chunks of context_chunking.py
    kv_cache_view.py      KV memory as schedulers see it; kv_cache_manager.py: KV memory of an engine of one's own
    batch_schedulers.py   the kind of plug-in
    maitred_scheduler.py  our own way: maitred_step.py plans a step, on maitred_state.py (what is known from step to step),
                          answer_lengths.py (what is learned), memory_forecast.py (what will be needed), victims.py (who is
                          paused) and prompt_shares.py (whose prompt goes on)
    scheduler_batch.py    SchedulerBatch: an instance with steps that a scheduler decides, over instance_kv_cache.py
"""

from __future__ import annotations

from maitred.batching.batch_schedulers import BATCH_SCHEDULERS, SchedulerResources, make_scheduler
from maitred.batching.block_needs import (
    BlockGeometry,
    SequenceNeed,
    blocks_of_first_chunk,
    blocks_of_generation_step,
    blocks_to_completion,
)
from maitred.batching.capacity import GuaranteedNoEvict, MaxRequests, MaxUtilization, StaticBatch
from maitred.batching.capacity_budgets import PeftCacheView
from maitred.batching.context_chunking import (
    ChunkAssignment,
    ChunkingPolicy,
    ChunkLimits,
    ContextChunkingConfig,
    reuse_adjusted_cost,
)
from maitred.batching.continuous import ContinuousBatch
from maitred.batching.kv_cache_manager import CrossKvCacheManager, KvCacheManager
from maitred.batching.kv_cache_view import KvCacheView, ReleaseSimulation, ReusedPrefix
from maitred.batching.limits import BatchLimits, PreemptionPolicy, PrefillChunk, context_spread
from maitred.batching.llm_request import LlmRequest, LlmRequestState, RequestList
from maitred.batching.micro_batch import TokenBudgetScheduler
from maitred.batching.plan_ahead import AheadBatch
from maitred.batching.running_batch import StepPlan
from maitred.batching.scheduler_batch import SchedulerBatch
from maitred.batching.schedulers import (
    CapacityScheduler,
    MicroBatchScheduler,
    RequestScheduler,
    SchedulerOutput,
    SimpleScheduler,
    insert_by_priority,
)

__all__ = [
    "BATCH_SCHEDULERS",
    "AheadBatch",
    "BatchLimits",
    "BlockGeometry",
    "CapacityScheduler",
    "ChunkAssignment",
    "ChunkLimits",
    "ChunkingPolicy",
    "ContextChunkingConfig",
    "ContinuousBatch",
    "CrossKvCacheManager",
    "GuaranteedNoEvict",
    "KvCacheManager",
    "KvCacheView",
    "LlmRequest",
    "LlmRequestState",
    "MaxRequests",
    "MaxUtilization",
    "MicroBatchScheduler",
    "PeftCacheView",
    "PreemptionPolicy",
    "PrefillChunk",
    "ReleaseSimulation",
    "RequestList",
    "RequestScheduler",
    "ReusedPrefix",
    "SchedulerBatch",
    "SchedulerOutput",
    "SchedulerResources",
    "SequenceNeed",
    "SimpleScheduler",
    "StaticBatch",
    "StepPlan",
    "TokenBudgetScheduler",
    "blocks_of_first_chunk",
    "blocks_of_generation_step",
    "blocks_to_completion",
    "context_spread",
    "insert_by_priority",
    "make_scheduler",
    "reuse_adjusted_cost",
]
