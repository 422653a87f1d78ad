"""The batch scheduler `batch-waiting`: prompts wait for others, so that fewer steps of those that generate hold prompts.

TensorRT-LLM does so with `batch_wait_max_tokens_ratio` and `batch_wait_timeout_iters` (both 0, off, by default). The rule is
that of `trtllm/batch_waiting.py`; which requests fit, and how prompts are cut, is decided as under `guaranteed-no-evict`.

Example: `batch-waiting(0.9, 20)` with `max_num_batched_tokens: 8192`. 16 requests generate and a prompt of 1,000 tokens comes.
It waits until prompts and requests that generate have 7,373 tokens together, or for 20 steps.
"""

from __future__ import annotations

from collections.abc import Set

from maitred.batching.batch_schedulers import BATCH_SCHEDULERS
from maitred.batching.trtllm.batch_waiting import BatchWaiting, PromptTokens
from maitred.batching.trtllm.capacity import GuaranteedNoEvict
from maitred.batching.trtllm.context_chunking import ContextChunkingConfig, reusable_tokens
from maitred.batching.trtllm.kv_cache_view import KvCacheView
from maitred.batching.trtllm.llm_request import RequestList
from maitred.batching.trtllm.micro_batch import TokenBudgetScheduler
from maitred.batching.trtllm.schedulers import SchedulerOutput, SimpleScheduler


@BATCH_SCHEDULERS.register("batch-waiting")
class BatchWaitingScheduler(SimpleScheduler):
    """As GuaranteedNoEvict, but prompts wait until they fill a share of a step, or have waited for some steps"""

    def __init__(
        self,
        max_tokens_ratio: float,
        timeout_iters: int,
        *,
        max_num_requests: int,
        kv_cache_manager: KvCacheView,
        max_batch_size: int,
        max_num_tokens: int | None = None,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
    ) -> None:
        if not 0 <= max_tokens_ratio <= 1 or timeout_iters < 0:
            raise ValueError("max_tokens_ratio must be from 0 to 1, and timeout_iters at least 0")
        budget = TokenBudgetScheduler(max_batch_size, max_num_tokens, ctx_chunk_config, max_context_length)
        super().__init__(GuaranteedNoEvict(max_num_requests, kv_cache_manager), budget)
        self.repeats_lone_chunk = False  # what is left of a prompt waits as well
        self._waiting = BatchWaiting(max_num_tokens or 0, max_tokens_ratio, timeout_iters)

    def schedule_request(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> SchedulerOutput:
        return self._held_back(super().schedule_request(active_requests, inflight_request_ids))

    def schedule_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> SchedulerOutput | None:
        output = super().schedule_beside(generating, begun, pending)
        return None if output is None else self._held_back(output)

    def _held_back(self, output: SchedulerOutput) -> SchedulerOutput:
        """Return `output` without its prompts, if they wait."""
        prompts = [
            PromptTokens(each.context_chunk_size, reusable_tokens(each), each.is_first_context_chunk)
            for each in output.context_requests
        ]
        if not self._waiting.runs(prompts, [1 + each.num_draft_tokens for each in output.generation_requests]):
            output.context_requests = []
        return output
