"""BATCH_SCHEDULERS: the kind of plug-in that decides which requests each step serves, and how its parts become a scheduler.

A plug-in is a `CapacityScheduler`, a `MicroBatchScheduler` or a whole `RequestScheduler`. A stage that it does not decide is
TensorRT-LLM's default: `GuaranteedNoEvict`, and `TokenBudgetScheduler`. Its constructor asks for what it needs under
TensorRT-LLM's names, which need no annotations: `max_num_requests`, `kv_cache_manager` and the other fields of
`SchedulerResources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from maitred.batching.instance_kv_cache import InstanceKvCache
from maitred.batching.trtllm.capacity import GuaranteedNoEvict, MaxRequests, MaxUtilization, StaticBatch
from maitred.batching.trtllm.capacity_budgets import PeftCacheView
from maitred.batching.trtllm.context_chunking import ContextChunkingConfig
from maitred.batching.trtllm.kv_cache_view import KvCacheView
from maitred.batching.trtllm.micro_batch import TokenBudgetScheduler
from maitred.batching.trtllm.schedulers import (
    CapacityScheduler,
    MicroBatchScheduler,
    RequestScheduler,
    SimpleScheduler,
    StateWindow,
)
from maitred.core.registry import Registry
from maitred.kv import BlockManager

BatchScheduler: TypeAlias = CapacityScheduler | MicroBatchScheduler | RequestScheduler


class SchedulerResources(msgspec.Struct, frozen=True):
    """What an engine gives to its scheduler. The constructor of a plug-in may take any of these fields."""

    max_num_requests: int
    """Active requests that may have memory at once."""
    kv_cache_manager: KvCacheView
    max_batch_size: int
    """Requests in one step."""
    max_num_tokens: int | None = None
    """Tokens in one step, or None for no limit."""
    ctx_chunk_config: ContextChunkingConfig | None = None
    """How prompts are cut into chunks, or None if they are computed whole."""
    max_context_length: int | None = None
    """Tokens in one chunk, or None for no limit but `max_num_tokens`."""
    peft_cache_manager: PeftCacheView | None = None
    cross_kv_cache_manager: KvCacheView | None = None

    def by_name(self) -> Mapping[str, Any]:
        """Return the values by the names that constructors ask for."""
        values = {field: getattr(self, field) for field in self.__struct_fields__}
        return {**values, "scheduler_capacity": self.max_num_requests}


_SAMPLE: Final = SchedulerResources(1, InstanceKvCache(BlockManager(1, 16), {}, lambda: 0), 1)

BATCH_SCHEDULERS: Final[Registry[Any]] = Registry(
    "batch scheduler",
    StateWindow,
    group="maitred.batch_schedulers",
    packages=("maitred.batching",),
    bases=(CapacityScheduler, MicroBatchScheduler, RequestScheduler),
    defaults=_SAMPLE.by_name(),
    flag="--batching",
)
for _name, _policy in (
    ("max-requests", MaxRequests),
    ("guaranteed-no-evict", GuaranteedNoEvict),
    ("static-batch", StaticBatch),
    ("max-utilization", MaxUtilization),
):
    BATCH_SCHEDULERS.register(_name)(_policy)


def make_scheduler(spec: str, resources: SchedulerResources) -> RequestScheduler:
    """Return the scheduler that `spec` names, with the default for a stage that it does not decide. Raises ConfigError."""
    made: BatchScheduler = BATCH_SCHEDULERS.create(spec, resources.by_name())
    if isinstance(made, RequestScheduler):
        return made
    if isinstance(made, CapacityScheduler):
        micro_batch = TokenBudgetScheduler(
            resources.max_batch_size, resources.max_num_tokens, resources.ctx_chunk_config, resources.max_context_length
        )
        return SimpleScheduler(made, micro_batch)
    return SimpleScheduler(GuaranteedNoEvict(resources.max_num_requests, resources.kv_cache_manager), made)
