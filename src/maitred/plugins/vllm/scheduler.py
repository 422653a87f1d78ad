"""Scheduler: vLLM's own scheduler with a waiting queue that maitred orders. The only module that imports vLLM.

vLLM's `schedule()` has no hook for a queue policy. So its attribute `waiting` is replaced once it is built, and a few calls
stand around its methods: `begin_step` and `end_step` around `schedule`, and the end of requests after `update_from_output` and
`finish_requests`. Nothing of vLLM is copied or patched but the block pool's map of cached blocks, for policies that follow the
cache (`block_pool_view`).

The class to be made depends on the engine. If vLLM schedules asynchronously, that is, plans a step while the one before runs,
it needs its `AsyncScheduler`; else it must not have it. `Scheduler.__new__` makes the one that fits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Self

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as EngineAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as EngineScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

import vllm
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.plugins.vllm import release_of
from maitred.plugins.vllm.block_pool_view import BlockPoolView
from maitred.plugins.vllm.config import PluginConfig, made_policy, misplaced, read_config
from maitred.plugins.vllm.engine_request import VllmRequest, describe_request
from maitred.plugins.vllm.policy_queue import PolicyQueue, VllmState
from maitred.plugins.vllm.step_log import FORMAT, StepLog, StepLogHeader
from maitred.queueing import QueueingConfig

logger = init_logger("vllm.maitred")
COMPLETE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
"""The states of requests with a complete answer."""

SAME_KEYS = (
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
)
"""The keys of the section `instance:` that are attributes of vLLM's `SchedulerConfig`, with the same meaning."""


class Scheduler(EngineScheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """vLLM's scheduler, with a waiting queue in the order of a policy of maitred (`vllm serve --scheduler-cls`)."""

    _plans_ahead = False

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Self:
        is_async = cls is Scheduler and vllm_config.scheduler_config.async_scheduling
        made: Self = super().__new__(AsyncScheduler if is_async else cls)
        return made

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """Takes what vLLM's scheduler takes. Raises ConfigError for a configuration that is not valid."""
        config = read_config(vllm_config.additional_config, os.environ)
        super().__init__(vllm_config, *args, **kwargs)
        pool = _view_of(self)
        ignored = misplaced(vllm_config.additional_config, os.environ)
        for warning in (*ignored, *config.warnings(prefix_cache=pool is not None)):
            logger.warning("maitred: %s", warning)
        queue = made_policy(config).make_queue(pool, Random(config.seed))
        log = None if config.record_steps is None else _open_log(self, config, config.record_steps, pool)
        self._block_pool_view, self._step_log = pool, log
        self.waiting = self._policy_queue = PolicyQueue(queue, _Engine(self, pool), log)
        logger.info("maitred orders the waiting queue: %s", config.scheduler)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._policy_queue.begin_step()
        output = super().schedule(*args, **kwargs)
        self._policy_queue.end_step(output.num_scheduled_tokens)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        if not self._plans_ahead:
            self._policy_queue.report_chunks()
        ended_before = set(self.finished_req_ids)
        outputs = super().update_from_output(*args, **kwargs)
        self._policy_queue.on_end(self.finished_req_ids - ended_before)
        return outputs

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        ended = super().finish_requests(*args, **kwargs)
        self._policy_queue.on_end(request.request_id for request in ended)
        return ended

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        view = self._block_pool_view
        were_cached = [] if view is None else view.cached_keys()
        is_reset = bool(super().reset_prefix_cache(*args, **kwargs))
        if view is not None and is_reset:
            view.on_reset(were_cached)
        return is_reset

    def shutdown(self) -> None:
        super().shutdown()
        if self._step_log is not None:
            self._step_log.close()


class AsyncScheduler(Scheduler, EngineAsyncScheduler):  # type: ignore[misc]
    """`Scheduler` for an engine that plans a step while the one before runs."""

    _plans_ahead = True


class _Engine(VllmState):
    """What the queue asks of vLLM."""

    def __init__(self, scheduler: Scheduler, view: BlockPoolView | None) -> None:
        self._scheduler = scheduler
        self._view = view
        self._pool = scheduler.kv_cache_manager.block_pool
        self._hash_block_size = None if view is None else int(self._pool.hash_block_size)
        self._started_at = time.monotonic_ns()

    def now(self) -> Micros:
        return (time.monotonic_ns() - self._started_at) // 1000

    def free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def on_head_shown(self) -> None:
        if self._view is not None:
            self._view.on_head_shown()

    def on_head_settled(self) -> None:
        if self._view is not None:
            self._view.on_head_settled()

    def running_requests(self) -> Sequence[VllmRequest]:
        running: list[VllmRequest] = self._scheduler.running
        return running

    def describe(self, request: VllmRequest, request_id: RequestId, arrival: Micros) -> Request:
        return describe_request(request, request_id, arrival, self._hash_block_size)

    def is_complete(self, request: VllmRequest) -> bool:
        return request.status in COMPLETE


def _view_of(scheduler: Scheduler) -> BlockPoolView | None:
    """Return the prefix cache as policies see it, or None where none caches whole prefixes."""
    manager, groups = scheduler.kv_cache_manager, scheduler.kv_cache_config.kv_cache_groups
    full = [group_id for group_id, group in enumerate(groups) if isinstance(group.kv_cache_spec, FullAttentionSpec)]
    if not (manager.enable_caching and full):
        return None
    block_size = groups[full[0]].kv_cache_spec.block_size * scheduler.dcp_world_size
    return BlockPoolView(manager.block_pool, full[0], block_size)


def _open_log(scheduler: Scheduler, config: PluginConfig, name: str, view: BlockPoolView | None) -> StepLog:
    """Return the log of the steps in a new file. Raises ConfigError if it cannot be written."""
    rank = scheduler.parallel_config.data_parallel_index  # engines side by side, each with a file of its own
    path = Path(name if rank == 0 else f"{name}.{rank}")
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", where=f"record_steps {path}") from error
    per_block = 0 if view is None else view.block_size // scheduler.hash_block_size
    return StepLog(file, StepLogHeader(FORMAT, vllm.__version__, config.seed, _instance_keys(scheduler, config)), per_block)


def _instance_keys(scheduler: Scheduler, config: PluginConfig) -> dict[str, Any]:
    """Return the keys of the section `instance:` with which the simulator has the same engine."""
    limits, manager = scheduler.scheduler_config, scheduler.kv_cache_manager
    ordering = {field: getattr(config, field) for field in QueueingConfig.__struct_fields__}
    return ordering | {
        "max_num_seqs": scheduler.max_num_active_reqs,
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
        "total_kv_blocks": scheduler.cache_config.num_gpu_blocks - 1,  # one is the null block, which nothing is written to
        "block_size_in_tokens": scheduler.block_size,
        "enable_prefix_caching": bool(manager.enable_caching),
        "max_model_len": scheduler.max_model_len,
        "preemption_policy": "client" if limits.policy == "priority" else "fcfs",
        **{name: getattr(limits, name) for name in SAME_KEYS},
        "async_scheduling": bool(limits.async_scheduling),
        "vllm_release": release_of(vllm.__version__),
    }
