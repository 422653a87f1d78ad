"""Which active requests have KV memory for the next step: TensorRT-LLM's four capacity policies.

    MaxRequests          no memory is counted: as many as may run
    GuaranteedNoEvict    a request begins when its blocks to completion are free: no request ever loses its KV
    StaticBatch          as GuaranteedNoEvict, and a new batch begins only when the last one is complete
    MaxUtilization       a request begins when its next step has blocks; if they run out, the last one that began is paused

Example: 10 blocks of 10 tokens, two requests of 10 prompt tokens and at most 80 of the answer. To completion each takes 9
blocks, so under GuaranteedNoEvict the second one waits for 80 steps. Under MaxUtilization both begin. They fill the memory in
step 41: the second one is paused and keeps its 41 tokens as a prompt, which it computes again when the first one is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import ClassVar, Final

from maitred.batching.trtllm.capacity_budgets import AdapterPages, FreeBlocks, PeftCacheView, PromisedBlocks, StepBlocks
from maitred.batching.trtllm.kv_cache_view import NO_MATCH, KvCacheView, ReusedPrefix
from maitred.batching.trtllm.llm_request import LlmRequest, LlmRequestState, RequestList
from maitred.batching.trtllm.schedulers import CapacityScheduler, split_disagg_gen_init

_GENERATING: Final = LlmRequestState.GENERATION_IN_PROGRESS  # members of enums are slow to look up


class MaxRequests(CapacityScheduler):
    """As many requests as may run, in order; memory is not counted."""

    repeats_its_answer: bool = True

    def __init__(self, max_num_requests: int) -> None:
        self.max_num_requests = max_num_requests

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        counted = (
            request
            for request in active_requests
            if self.is_schedulable(request)
            and (request.is_context_init_state or request.is_generation_in_progress_state or request.is_encoder_init_state)
        )
        return [request for request, _ in zip(counted, range(self.max_num_requests), strict=False)], [], []


class BlockCountingScheduler(CapacityScheduler):
    """The common part of the policies that count blocks."""

    def __init__(
        self,
        max_num_requests: int,
        kv_cache_manager: KvCacheView,
        peft_cache_manager: PeftCacheView | None = None,
        cross_kv_cache_manager: KvCacheView | None = None,
        *,
        enable_prefix_aware_scheduling: bool = True,
    ) -> None:
        """`cross_kv_cache_manager` is the memory of cross attention in encoder-decoder models."""
        self.max_num_requests = max_num_requests
        self.kv_cache_manager = kv_cache_manager
        self.peft_cache_manager = peft_cache_manager
        self.cross_kv_cache_manager = cross_kv_cache_manager
        self.enable_prefix_aware_scheduling = enable_prefix_aware_scheduling

    def is_candidate(self, request: LlmRequest) -> bool:
        """Return whether `request` is in a state that is served, or waits for its KV from another instance."""
        return self.is_schedulable(request) or request.is_disagg_generation_init_state

    def begin_promises(self, active_requests: RequestList, kv_caches: Iterable[KvCacheView | None]) -> PromisedBlocks | None:
        """Return the promised blocks of a pass, with those of the requests in the middle of their prompt, or None if no request
        is delayed for its prefix: without reuse, or with several windows."""
        shared = [kv_cache for kv_cache in kv_caches if kv_cache is not None]
        if not self.enable_prefix_aware_scheduling or not all(
            kv_cache.enable_block_reuse and len(kv_cache.free_blocks) == 1 for kv_cache in shared
        ):
            return None
        promises = PromisedBlocks(shared)
        for request in active_requests:
            if request.is_context_init_state and not request.is_first_context_chunk:
                promises.promise(request)
        return promises

    def match_prefix(self, request: LlmRequest, promises: PromisedBlocks | None) -> ReusedPrefix:
        """Return the cached prefix of the prompt of `request`, which is about to begin, and note how many tokens of it need not
        be computed."""
        request.estimated_reusable_tokens = 0
        kv_cache = self.kv_cache_manager
        if not _begins(request) or not kv_cache.enable_block_reuse or not self.enable_prefix_aware_scheduling:
            return NO_MATCH
        match = promises.match(request) if promises is not None else kv_cache.match_prefix(request)
        # The last token is always computed, or none could come out.
        usable = min(match.num_cached_blocks, (request.prompt_len - 1) // kv_cache.tokens_per_block)
        request.estimated_reusable_tokens = usable * kv_cache.tokens_per_block
        return match


class GuaranteedNoEvict(BlockCountingScheduler):
    """A request begins when all blocks that it will ever need are free. The first one that does not fit blocks those behind
    it."""

    repeats_its_answer: bool = True
    waits_for_empty_batch: ClassVar[bool] = False
    """Whether requests begin only when no other one runs."""
    delays_duplicates: ClassVar[bool] = True
    """Whether a request waits while another one computes its first new block."""

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        running, disagg, pending = self._by_stage(active_requests)
        scheduled = running
        if (disagg or pending) and not (running and self.waits_for_empty_batch):
            self._begin_pending(scheduled, disagg, pending, active_requests)
        fitting, disagg_gen_init = split_disagg_gen_init(scheduled) if disagg else (scheduled, [])
        return fitting, disagg_gen_init, []

    def fit_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> RequestList | None:
        scheduled = [*generating]
        if begun or pending:
            self._begin_pending(scheduled, RequestList(), begun + pending, begun)
        return scheduled[len(generating) :]

    def _by_stage(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        """Return the requests that generate, those that wait for KV from elsewhere, and the others, as far as more may run."""
        running, disagg, pending = RequestList(), RequestList(), RequestList()
        until, after, most = self.no_schedule_until_state, self.no_schedule_after_state, self.max_num_requests
        for request in active_requests:
            if request.is_disagg_generation_init_state:
                disagg.append(request)
            elif not until <= request.state < after:
                continue
            elif request.is_generation_in_progress_state:
                running.append(request)
            else:
                pending.append(request)
            if len(running) >= most:
                break
        return running, disagg, pending

    def _begin_pending(
        self, scheduled: RequestList, disagg: RequestList, pending: RequestList, active_requests: RequestList
    ) -> None:
        """Add the requests to `scheduled` that fit beside those in it."""
        cross = self.cross_kv_cache_manager
        promises = self.begin_promises(active_requests, (self.kv_cache_manager, cross)) if self.delays_duplicates else None
        adapters = AdapterPages(self.peft_cache_manager)
        budgets = [FreeBlocks(self.kv_cache_manager)] + ([FreeBlocks(cross)] if cross is not None else [])
        if self.peft_cache_manager is not None:
            for request in scheduled:
                adapters.claim(request)
        for budget in budgets:
            budget.reserve_running(scheduled)
        self._begin_in_order(scheduled, disagg, budgets, adapters, None)
        self._begin_in_order(scheduled, pending, budgets, adapters, promises)

    def _begin_in_order(
        self,
        scheduled: RequestList,
        requests: RequestList,
        budgets: list[FreeBlocks],
        adapters: AdapterPages,
        promises: PromisedBlocks | None,
    ) -> None:
        """Add requests to `scheduled` until one does not find its blocks. One without pages for its adapter is passed over."""
        for request in requests:
            if promises is not None and _begins(request):
                if promises.is_promised(request):
                    continue
                promises.promise(request)
            if len(scheduled) >= self.max_num_requests:
                return
            needs = self._try_reserve(request, budgets, promises)
            if needs is None:
                return  # no look past it: smaller requests would take the blocks one by one, and it would never begin
            if not adapters.fits(request):
                continue
            adapters.claim(request)
            for budget, needed in needs:
                budget.reserve(needed)
            scheduled.append(request)

    def _try_reserve(
        self, request: LlmRequest, budgets: list[FreeBlocks], promises: PromisedBlocks | None
    ) -> list[tuple[FreeBlocks, Sequence[int]]] | None:
        """Return the needs of `request` by budget, or None if one of them does not have it."""
        if request.is_encoder_init_state:
            if self.cross_kv_cache_manager is None:
                raise ValueError(f"request {request.request_id} has an encoder phase, and there is no cross-attention memory")
            return []  # the encoder writes no KV
        match = self.match_prefix(request, promises)
        needs: list[tuple[FreeBlocks, Sequence[int]]] = []
        for budget in budgets:
            needed = budget.try_reserve(request, match)
            if needed is None:
                return None
            needs.append((budget, needed))
        return needs


class StaticBatch(GuaranteedNoEvict):
    """As GuaranteedNoEvict, but requests begin together, when the last batch is complete."""

    waits_for_empty_batch: ClassVar[bool] = True
    delays_duplicates: ClassVar[bool] = False

    def fit_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> RequestList | None:
        return RequestList() if generating else super().fit_beside(generating, begun, pending)


class MaxUtilization(BlockCountingScheduler):
    """A request begins when the blocks of its next step are free. If they are not, the last one in the list that has begun is
    paused: it loses its KV, and is computed again later."""

    repeats_its_answer: bool = True
    skips_own_promise: ClassVar[bool] = False
    """Whether a request that is tried again after a pause waits for the block that it has promised itself."""

    def __init__(
        self,
        max_num_requests: int,
        kv_cache_manager: KvCacheView,
        peft_cache_manager: PeftCacheView | None = None,
        cross_kv_cache_manager: KvCacheView | None = None,
        *,
        enable_prefix_aware_scheduling: bool = True,
        two_step_lookahead: bool = False,
    ) -> None:
        """`two_step_lookahead`: count the blocks of two steps, as with pipeline parallelism, where a step is planned before the
        last one has ended."""
        super().__init__(
            max_num_requests,
            kv_cache_manager,
            peft_cache_manager,
            cross_kv_cache_manager,
            enable_prefix_aware_scheduling=enable_prefix_aware_scheduling,
        )
        self.two_step_lookahead = two_step_lookahead
        self.repeats_its_answer = not two_step_lookahead  # which pauses before the blocks run out

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        promises = self.begin_promises(active_requests, (self.kv_cache_manager,))
        budgets = [
            StepBlocks(kv_cache, two_step_lookahead=self.two_step_lookahead)
            for kv_cache in (self.kv_cache_manager, self.cross_kv_cache_manager)
            if kv_cache is not None
        ]
        adapters = AdapterPages(self.peft_cache_manager)
        scheduled, paused = self._take_leading(active_requests, budgets), RequestList()
        index, end, is_retry = len(scheduled), len(active_requests), False
        while index < end:
            request = active_requests[index]
            if not self.is_candidate(request) or self._is_delayed(request, promises, is_retry=is_retry):
                index, is_retry = index + 1, False
            elif len(scheduled) < self.max_num_requests and self._try_take(request, budgets, adapters, promises):
                scheduled.append(request)
                index, is_retry = index + 1, False
            else:
                victim = self._last_started(active_requests, index, end)
                if victim is None:
                    break
                # It is tried again with what the victim held; the victim, and all behind it, are out of this step.
                for budget in budgets:
                    budget.release(active_requests[victim])
                paused.append(active_requests[victim])
                end, is_retry = victim, True
        fitting, disagg_gen_init = split_disagg_gen_init(scheduled)
        return fitting, disagg_gen_init, paused

    def fit_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> RequestList | None:
        budget = StepBlocks(self.kv_cache_manager, two_step_lookahead=False)
        taken = budget.try_take_all(generating)
        if taken is None or self.two_step_lookahead or len(generating) > self.max_num_requests:
            return None
        budget.take(taken)
        promises = self.begin_promises(begun, (self.kv_cache_manager,))
        adapters, most = AdapterPages(self.peft_cache_manager), self.max_num_requests - len(generating)
        fitting = RequestList()
        for index, request in enumerate(begun + pending):
            if self._is_delayed(request, promises, is_retry=False):
                continue
            if len(fitting) >= most or not self._try_take(request, [budget], adapters, promises):
                # One that has begun may have to be paused. If none of those that are left has, they all wait.
                return None if index < len(begun) else fitting
            fitting.append(request)
        return fitting

    def _take_leading(self, active_requests: RequestList, budgets: list[StepBlocks]) -> RequestList:
        """Return the requests at the head of the list that generate, if they all fit, else none. They are taken together, since
        mostly they are all that runs; if they do not fit, they are tried one by one."""
        leading = list(takewhile(lambda request: request.state == _GENERATING, active_requests))
        if len(leading) > self.max_num_requests or self.peft_cache_manager is not None:
            return RequestList()
        takes = [(budget, budget.try_take_all(leading)) for budget in budgets]
        if any(taken is None for _, taken in takes):
            return RequestList()
        for budget, taken in takes:
            budget.take(taken or [])
        return leading

    def _is_delayed(self, request: LlmRequest, promises: PromisedBlocks | None, *, is_retry: bool) -> bool:
        """Return whether `request` waits for a block that another one computes. Otherwise it promises its own."""
        if promises is None or not _begins(request) or request.is_disagg_generation_init_state:
            return False
        if is_retry and not self.skips_own_promise:
            return False
        if promises.is_promised(request):
            return True
        promises.promise(request)
        return False

    def _try_take(
        self, request: LlmRequest, budgets: list[StepBlocks], adapters: AdapterPages, promises: PromisedBlocks | None
    ) -> bool:
        """Take the blocks and pages of `request`; return False if they are not free."""
        match = self.match_prefix(request, promises)
        takes = []
        for budget in budgets:
            taken = budget.try_take(request, match)
            if taken is None:
                return False
            takes.append((budget, taken))
        if not adapters.fits(request):
            return False
        for budget, taken in takes:
            budget.take(taken)
        adapters.claim(request)
        return True

    def _last_started(self, active_requests: RequestList, first: int, end: int) -> int | None:
        """Return the index of the last request in [first, end) that has begun, or None if none has."""
        for index in range(end - 1, first - 1, -1):
            request = active_requests[index]
            if request.is_started and self.is_schedulable(request):
                return index
        return None


def _begins(request: LlmRequest) -> bool:
    """Return whether nothing of the prompt of `request` has been computed yet."""
    return request.is_context_init_state and request.is_first_context_chunk
