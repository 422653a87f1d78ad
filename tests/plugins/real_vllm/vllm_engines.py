"""vLLM in this process: its scheduler alone, and a whole engine. Needs vLLM (`make vllm-test`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL = os.environ.get("MAITRED_VLLM_MODEL", "")
"""Folder of the tiny model."""
SCHEDULER = "maitred.plugins.vllm.Scheduler"


class StandaloneScheduler:
    """vLLM's scheduler class with its KV cache manager and block pool, without model and worker.

    A step samples token 100 for each request whose prompt is computed. With `async_scheduling`, a step is planned before the
    outcome of the one before is told, as vLLM does then.
    """

    def __init__(
        self,
        maitred: Mapping[str, Any] | None = None,
        *,
        num_blocks: int = 1025,
        block_size: int = 16,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 2048,
        async_scheduling: bool = False,
        scheduler_cls: str | None = SCHEDULER,
        **engine_args: Any,
    ) -> None:
        """`maitred` is the section of that name in `--additional-config`."""
        args = EngineArgs(
            model=MODEL,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=4096,
            scheduler_cls=scheduler_cls,
            additional_config={} if maitred is None else {"maitred": dict(maitred)},
            **engine_args,
        )
        config = args.create_engine_config()
        config.scheduler_config.async_scheduling = async_scheduling  # the platform overrides these two for a CPU
        config.cache_config.block_size = block_size
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
        self.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            log_stats=True,
            block_size=block_size,
            hash_block_size=block_size,
        )
        self._is_async = async_scheduling
        self._unseen: list[Any] = []
        """Outputs of `schedule` that have not been told of their outcome."""
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = (
            get_request_block_hasher(block_size, hash_function) if config.cache_config.enable_prefix_caching else None
        )
        self.steps: list[dict[str, int]] = []
        """Tokens of each request, step by step."""
        self.finished: list[str] = []
        """Requests in the order in which they ended."""
        self.num_preemptions = 0
        self.prefix_hits = 0
        """Prompt tokens that were found in the prefix cache."""

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, *, priority: int = 0, **hints: Any) -> None:
        """Let a request wait. `hints` are the `vllm_xargs` of its body."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=hints or None)
        self.scheduler.add_request(Request(name, [*prompt], params, None, priority=priority, block_hasher=self._hasher))

    def step(self) -> dict[str, int]:
        """Make one step. Returns the tokens of each request."""
        output = self.scheduler.schedule()
        self._unseen.append(output)
        self.num_preemptions += len(output.preempted_req_ids or ())
        if len(self._unseen) > self._is_async:
            self._tell_outcome()
        scheduled = dict(output.num_scheduled_tokens)
        if scheduled:
            self.steps.append(scheduled)
        return scheduled

    def run(self, limit: int = 5000) -> None:
        """Make steps until every request has ended. Raises AssertionError if that takes more than `limit`."""
        for _ in range(limit):
            if not (self.scheduler.has_unfinished_requests() or self._unseen):
                return
            if not self.step() and self._unseen:
                self._tell_outcome()
        raise AssertionError(f"{self.scheduler.get_num_unfinished_requests()} requests have not ended after {limit} steps")

    def _tell_outcome(self) -> None:
        output = self._unseen.pop(0)
        names = list(output.num_scheduled_tokens)
        computed = [self._is_computed(output, name) for name in names]
        sampled = [[100] if is_computed else [] for is_computed in computed]
        outcome = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled, None, {}, pooler_output=[])
        for outputs in self.scheduler.update_from_output(output, outcome).values():
            self.finished += [out.request_id for out in outputs.outputs if out.finish_reason is not None]
            if outputs.scheduler_stats is not None:
                self.prefix_hits += outputs.scheduler_stats.prefix_cache_stats.hits

    def _is_computed(self, output: Any, name: str) -> bool:
        """Return whether the step computes the last token that there is of a request, so that the next one comes out."""
        new = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
        cached = dict(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens, strict=True))
        request = self.scheduler.requests.get(name)
        if request is None:
            return False
        return (new | cached)[name] + output.num_scheduled_tokens[name] >= request.num_tokens


def prompt(length: int, seed: int = 0, *, shared: int = 0, group: int = 0) -> list[int]:
    """Return `length` tokens, of which the first `shared` are those of the group."""
    return [10 + (7 * group + 31 * i) % 900 for i in range(shared)] + [
        10 + (6151 * seed + 53 * i) % 900 for i in range(length - shared)
    ]


class InProcessEngine:
    """A whole vLLM with the tiny model, in this process: stepped by the caller, so its schedule does not depend on timing."""

    def __init__(self, maitred: Mapping[str, Any] | None = None, **engine_args: Any) -> None:
        """`maitred` is the section of that name in `--additional-config`, or None for vLLM's own scheduler."""
        args = EngineArgs(
            model=MODEL,
            max_model_len=engine_args.pop("max_model_len", 2048),
            enforce_eager=True,
            kv_cache_memory_bytes=1 << 25,
            block_size=32,
            scheduler_cls=None if maitred is None else SCHEDULER,
            additional_config={} if maitred is None else {"maitred": dict(maitred)},
            disable_log_stats=False,
            **engine_args,
        )
        self._engine = LLMEngine.from_engine_args(args)
        self.answers: dict[str, list[int]] = {}
        """The tokens of each answer, in the order in which they were complete."""

    @property
    def scheduler(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, **hints: Any) -> None:
        """Let a request wait. `hints` are the `vllm_xargs` of its body."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, extra_args=hints or None)
        self._engine.add_request(name, {"prompt_token_ids": [*prompt]}, params)

    def step(self) -> None:
        """Make one step."""
        for output in self._engine.step():
            if output.finished:
                self.answers[output.request_id] = list(output.outputs[0].token_ids)

    def run(self) -> None:
        """Make steps until every request has ended."""
        while self._engine.has_unfinished_requests():
            self.step()

    def counter(self, name: str) -> float:
        """Return the value of a counter of vLLM, such as `vllm:prefix_cache_hits`."""
        return float(next(metric.value for metric in self._engine.get_metrics() if metric.name == name))

    def close(self) -> None:
        """Free what vLLM holds in this process, so that another one can start."""
        self._engine.engine_core.shutdown()
        del self._engine
        cleanup_dist_env_and_memory()
