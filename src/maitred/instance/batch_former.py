"""The KV memory and the batch former of an instance, by its configuration."""

from __future__ import annotations

from typing import Any

from maitred.batching import (
    AheadBatch,
    ChunkingPolicy,
    ContextChunkingConfig,
    ContinuousBatch,
    KvCacheView,
    PreemptionPolicy,
    RequestScheduler,
    RunningBatch,
    SchedulerBatch,
    SchedulerResources,
    make_scheduler,
)
from maitred.instance.config import InstanceConfig
from maitred.kv import BlockManager, PrefixBlockManager, PrefixCache, RadixCache
from maitred.kv.host_tier import HostTier
from maitred.kv.radix_host_tier import RadixHostTier


class EngineParts:
    """The parts of an engine in which another system may have rules of its own."""

    def __init__(self, prefix_cache: PrefixCache[Any] | None, blocks: BlockManager, batch: RunningBatch) -> None:
        """`prefix_cache` is None without prefix caching. Otherwise `blocks` are those of the cache."""
        self.prefix_cache = prefix_cache
        self.blocks = blocks
        self.batch = batch


def standard_parts(config: InstanceConfig) -> EngineParts:
    """Return the parts that work by vLLM's rules, or by those of `batching`. Raises ConfigError for an unknown policy."""
    cache, blocks = new_memory(config)
    return EngineParts(cache, blocks, new_batch(config, blocks))


def new_memory(config: InstanceConfig) -> tuple[PrefixCache[Any] | None, BlockManager]:
    """Return the prefix cache, or None without one, and the empty blocks. Raises ConfigError for an unknown eviction policy."""
    cache = config.new_prefix_cache()
    if cache is None:
        return None, BlockManager(config.kv_blocks, config.block_size_in_tokens)
    blocks, offload, size = PrefixBlockManager(cache), config.kv_offload, config.block_size_in_tokens
    if offload:
        room, time = offload.num_blocks(size), offload.time_per_block(size)
        if isinstance(cache, RadixCache):
            blocks.host = RadixHostTier(cache, room, time, offload.write_policy)
        else:
            blocks.host = HostTier(cache, room, time)
    return cache, blocks


def new_batch(config: InstanceConfig, blocks: BlockManager) -> RunningBatch:
    """Return an empty batch over `blocks`; without `batching` by vLLM's rules, with the KV victim by `preemption_policy`, or by
    the clients' priorities under `scheduling_policy: priority`. Raises ConfigError for a batch scheduler that cannot be made or
    used here."""
    limits, name = config.batch_limits, config.batching
    if name is None:
        victims = PreemptionPolicy(config.preemption_policy)
        if config.scheduling_policy == "priority":
            victims = PreemptionPolicy.LEAST_URGENT_CLIENT
        if config.async_scheduling:
            return AheadBatch(limits, blocks, victims, config.model_len)
        return ContinuousBatch(limits, blocks, victims)

    def make(kv_cache: KvCacheView) -> RequestScheduler:
        return make_scheduler(name, _resources(config, kv_cache))

    ahead, by_step = config.async_scheduling, config.step_by_step
    return SchedulerBatch(limits, blocks, config.model_len, name, make, plans_ahead=ahead, step_by_step=by_step)


def _resources(config: InstanceConfig, kv_cache: KvCacheView) -> SchedulerResources:
    limits, chunking, policy = config.batch_limits, None, config.context_chunking_policy
    if policy != "none":
        chunking = ContextChunkingConfig(ChunkingPolicy[policy.replace("-", "_").upper()], config.block_size_in_tokens)
    return SchedulerResources(
        max_num_requests=limits.max_num_seqs,
        kv_cache_manager=kv_cache,
        max_batch_size=limits.max_num_seqs,
        max_num_tokens=limits.max_num_batched_tokens,
        ctx_chunk_config=chunking,
        max_context_length=limits.max_num_batched_tokens,
    )
