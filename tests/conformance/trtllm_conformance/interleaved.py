"""InterleavedScheduler: the scheduler of TensorRT-LLM's second KV-cache manager, which allocates while it schedules.

Requests that generate come first, in order. Each takes its tokens of the budget and allocates the blocks of its step. If there
are none, memory is made, from the end of the list:

    suspend     the last request that has begun and has an active cache: its pages may go to a slower tier of memory
    recompute   the last request that has begun gives all up and computes its prompt again, even one that was suspended before.
                This looks over the list anew, and ends nothing: requests before the victim are still served. A multimodal
                request whose prompt is complete is no victim: its encoder output is gone by then
    itself      the request is suspended itself, and no further one generates in this step

A victim that was suspended ends the range in which others are served. Prompts follow in the second phase, within what is left
of the budget. Only max-utilization works this way.

Example: A, B and C generate, in this order, and no block is free. A needs one: C, the last with an active cache, is suspended,
and A is served. B, which still has room in its last block, is served too; the range ends before C.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

import msgspec

from maitred.batching import LlmRequest, LlmRequestState, RequestList
from maitred.batching.trtllm.context_chunking import UNLIMITED


class InterleavedCache(Protocol):
    """The KV memory that is allocated while a step is planned."""

    has_secondary_tier: bool
    """Whether suspended pages can leave the device."""

    def is_active(self, request: LlmRequest) -> bool:
        """Return whether the cache of `request` is in use: not suspended, and not without blocks."""
        ...

    def try_allocate(self, request: LlmRequest) -> bool:
        """Allocate what the next step of `request` takes; return False if there is no room."""
        ...

    def suspend(self, request: LlmRequest) -> None:
        """Make the pages of `request` available to others, where they can be moved."""
        ...

    def free(self, request: LlmRequest) -> None:
        """Give up all pages of `request`."""
        ...


class InterleavedOutput(msgspec.Struct):
    """What one step does."""

    encoder_requests: RequestList = msgspec.field(default_factory=list)
    context_requests: RequestList = msgspec.field(default_factory=list)
    generation_requests: RequestList = msgspec.field(default_factory=list)
    paused_requests: RequestList = msgspec.field(default_factory=list)
    """Suspended requests, which keep their pages."""
    recompute_paused_requests: RequestList = msgspec.field(default_factory=list)
    """Requests that have given up their pages."""


class InterleavedScheduler:
    """Generation, then prompts, each within its share of requests and tokens."""

    def __init__(
        self,
        cache: InterleavedCache,
        max_batch_size: int,
        max_num_tokens: int | None = None,
        *,
        enable_recompute_pause: bool = True,
    ) -> None:
        """`max_num_tokens`: None for no limit."""
        self.cache = cache
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.enable_recompute_pause = enable_recompute_pause

    def schedule_request(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> InterleavedOutput:
        """Return what the next step does. The blocks of the requests in it are allocated."""
        return _Pass(self, active_requests, inflight_request_ids).run()


class _Pass:
    def __init__(self, scheduler: InterleavedScheduler, requests: RequestList, inflight_request_ids: Set[int]) -> None:
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._requests = requests
        self._inflight = inflight_request_ids
        self._budget = UNLIMITED if scheduler.max_num_tokens is None else scheduler.max_num_tokens
        self._output = InterleavedOutput()
        self._deferred = RequestList()
        self._end = len(requests)
        """Requests from here on do not generate in this step: the first one is a victim."""
        self._recompute_end = len(requests)
        self._beam_width = 0

    def run(self) -> InterleavedOutput:
        self._schedule_generation()
        self._schedule_prompts()
        return self._output

    @property
    def _is_full(self) -> bool:
        output = self._output
        scheduled = len(output.encoder_requests) + len(output.context_requests) + len(output.generation_requests)
        return scheduled >= self._scheduler.max_batch_size

    def _schedule_generation(self) -> None:
        index = 0
        while index < self._end:  # which victims make smaller
            request = self._requests[index]
            index += 1
            if request.request_id in self._inflight or request in self._output.recompute_paused_requests:
                continue
            if request.is_encoder_init_state or request.is_context_init_state:
                self._deferred.append(request)
            elif request.state == LlmRequestState.GENERATION_IN_PROGRESS and not self._generate(request, index):
                return

    def _generate(self, request: LlmRequest, after: int) -> bool:
        """Schedule `request`, which generates. `after` is the index behind it. Return whether others may follow."""
        tokens = request.beam_width + request.num_draft_tokens
        if self._is_full or tokens > self._budget:
            return False
        if self._beam_width and request.beam_width != self._beam_width:
            return True
        if not self._allocate(request, after):
            self._suspend(request)
            return False
        self._beam_width = request.beam_width
        self._budget -= tokens
        self._output.generation_requests.append(request)
        return True

    def _allocate(self, request: LlmRequest, after: int) -> bool:
        """Allocate the next step of `request`, at the expense of requests behind it if need be."""
        if self._cache.try_allocate(request):
            return True
        while (victim := self._last_active(after)) is not None:
            self._end = victim
            self._suspend(self._requests[victim])
            if self._cache.try_allocate(request):
                return True
        while (victim := self._last_to_recompute(after)) is not None:
            self._recompute_end = victim
            self._give_up(self._requests[victim])
            if self._cache.try_allocate(request):
                return True
        return False

    def _last_active(self, first: int) -> int | None:
        """Return the index of the last request from `first` on that has begun and has an active cache, or None."""
        for index in range(self._end - 1, first - 1, -1):
            request = self._requests[index]
            if self._is_victim(request) and self._cache.is_active(request):
                return index
        return None

    def _last_to_recompute(self, first: int) -> int | None:
        """Return the index of the last request from `first` on that may compute its prompt again, or None."""
        if not self._scheduler.enable_recompute_pause:
            return None
        for index in range(self._recompute_end - 1, first - 1, -1):
            request = self._requests[index]
            # Without a lower tier of memory the pages of a request that this pass has suspended are available as they are.
            in_vain = request in self._output.paused_requests and not self._cache.has_secondary_tier
            if self._can_recompute(request) and not in_vain and request not in self._output.recompute_paused_requests:
                return index
        return None

    def _is_victim(self, request: LlmRequest) -> bool:
        is_finishing = request.state == LlmRequestState.GENERATION_TO_COMPLETE
        return request.is_started and not is_finishing and request.request_id not in self._inflight

    def _can_recompute(self, request: LlmRequest) -> bool:
        # The output of the encoder is given up with the end of the prefill, so the prompt cannot be computed again.
        is_past_prefill = not request.is_context_init_state
        return self._is_victim(request) and not (request.is_multimodal and is_past_prefill)

    def _suspend(self, request: LlmRequest) -> None:
        self._cache.suspend(request)
        self._output.paused_requests.append(request)

    def _give_up(self, request: LlmRequest) -> None:
        self._cache.free(request)
        if request in self._output.paused_requests:
            self._output.paused_requests.remove(request)
        self._output.recompute_paused_requests.append(request)

    def _schedule_prompts(self) -> None:
        output = self._output
        for request in self._deferred:
            if self._is_full:
                return
            tokens = _prompt_tokens(request)
            if request in output.paused_requests or request in output.recompute_paused_requests:
                continue
            if tokens > self._budget or not self._cache.try_allocate(request):
                return
            self._budget -= tokens
            target = output.encoder_requests if request.is_encoder_init_state else output.context_requests
            target.append(request)


def _prompt_tokens(request: LlmRequest) -> int:
    if request.is_encoder_init_state:
        return request.encoder_output_len
    return request.context_remaining_length + request.num_draft_tokens
