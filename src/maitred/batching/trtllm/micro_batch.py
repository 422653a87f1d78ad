"""TokenBudgetScheduler: which of the fitting requests run in the next step, by TensorRT-LLM's rules.

Requests are served in the order in which they fit, until a limit is reached: `max_batch_size` requests, or `max_num_tokens`
tokens. A request that generates takes a token for each of its beams and each draft token. A prompt takes what is not expected
in the cache, and at least one token.

Without chunking, the first request that does not fit into the tokens ends the step. With it, the prompts are set aside, take
their places in the batch, and share the tokens that the generating requests leave (`context_chunking`).

Example: 15 tokens, units of 5, a request that generates and two prompts of 20 tokens. Generating takes 1 token, and the two
prompts share 14: under equal progress they get 5 each.
"""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar, Final

from maitred.batching.trtllm.context_chunking import (
    UNLIMITED,
    ChunkAssignment,
    ChunkingPolicy,
    ChunkLimits,
    ContextChunkingConfig,
    reusable_tokens,
    reuse_adjusted_cost,
)
from maitred.batching.trtllm.llm_request import LlmRequest, LlmRequestState, RequestList
from maitred.batching.trtllm.schedulers import MicroBatchResult, MicroBatchScheduler

_GENERATING: Final = LlmRequestState.GENERATION_IN_PROGRESS
_NO_IDS: Final[frozenset[int]] = frozenset()


class TokenBudgetScheduler(MicroBatchScheduler):
    """The requests that fit into the tokens and the places of one step."""

    repeats_its_answer: bool = True
    no_schedule_after_state: ClassVar[LlmRequestState] = LlmRequestState.GENERATION_TO_COMPLETE

    def __init__(
        self,
        max_batch_size: int,
        max_num_tokens: int | None = None,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
        assignment: ChunkAssignment | None = None,
    ) -> None:
        """`max_num_tokens`: None for no limit. `ctx_chunk_config`: None if prompts are computed whole. `max_context_length` is
        the longest chunk; by default `max_num_tokens` alone limits it."""
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.ctx_chunk_config = ctx_chunk_config
        self.max_context_length = max_context_length
        self.assignment = assignment or ChunkAssignment()
        # Snapshot points are at any distance, and a cost or a class of one's own may do anything.
        is_known = type(self) is TokenBudgetScheduler and type(self.assignment) is ChunkAssignment
        is_forced = ctx_chunk_config is None or ctx_chunk_config.chunking_policy is ChunkingPolicy.FORCE_CHUNK
        self.repeats_lone_chunk = is_known and not is_forced and self.assignment.cost_of is reuse_adjusted_cost

    def schedule(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> MicroBatchResult:
        step = _Step(self)
        self._fill(step, active_requests, inflight_request_ids)
        return step.finish()

    def chunk_beside(self, generating: RequestList, contexts: RequestList) -> RequestList | None:
        step = _Step(self)
        if not step.take_all_generation(len(generating)):
            return None
        if step.num_requests < self.max_batch_size:
            self._fill(step, contexts, _NO_IDS)
        return step.finish()[1]

    def cost_of_prompt(self, request: LlmRequest) -> int:
        """Return the tokens that `request` takes from the budget if its prompt is computed whole."""
        # The whole prompt counts, even if a part of it has been computed: without chunking there is no such part.
        rule, reusable = self.assignment.cost_of, reusable_tokens(request)
        return max(1, rule(request.num_tokens, reusable, request.context_remaining_length) + request.num_draft_tokens)

    def _fill(self, step: _Step, requests: RequestList, inflight_request_ids: Set[int]) -> None:
        """Put `requests` into `step`, in order, until one ends it."""
        until, after, most = self.no_schedule_until_state, self.no_schedule_after_state, self.max_batch_size
        for request in requests:
            state = request.state
            if not until <= state < after or request.request_id in inflight_request_ids:
                continue
            if state == _GENERATING or request.is_generation_in_progress_state:
                taken = step.take_generation(request)
            elif request.is_encoder_init_state:
                taken = step.take_encoder(request)
            else:
                taken = step.take_context(request)
            if taken is None:
                break
            step.num_requests += taken
            if step.num_requests >= most:
                break


class _Step:
    """The step that is being filled. The `take` methods return 1 for a request that takes a place, 0 for one that is passed
    over, and None for one that ends the step."""

    def __init__(self, scheduler: TokenBudgetScheduler) -> None:
        self._scheduler = scheduler
        self._budget = UNLIMITED if scheduler.max_num_tokens is None else scheduler.max_num_tokens
        self._longest = UNLIMITED if scheduler.max_context_length is None else scheduler.max_context_length
        self._encoder, self._context, self._generation = RequestList(), RequestList(), RequestList()
        self._to_chunk = RequestList()
        self._tokens_to_chunk = 0
        self._must_chunk = False
        self._beam_width = 0
        self.num_requests = 0

    def take_generation(self, request: LlmRequest) -> int | None:
        tokens = request.beam_width + request.num_draft_tokens
        if tokens > self._budget:
            return None
        if self._beam_width and request.beam_width != self._beam_width:
            return 0  # all that generate in one step have the same number of beams, so it is passed over and not the end
        self._beam_width = request.beam_width
        self._generation.append(request)
        self._budget -= tokens
        return 1

    def take_all_generation(self, num_requests: int) -> bool:
        """Take `num_requests` requests that generate a token each. Return False, and take none, if not all of them fit."""
        if num_requests > min(self._budget, self._scheduler.max_batch_size):
            return False
        self.num_requests += num_requests
        self._budget -= num_requests
        return True

    def take_encoder(self, request: LlmRequest) -> int | None:
        tokens = self._checked(request, request.encoder_output_len)
        if tokens > self._budget:
            return None
        self._encoder.append(request)
        self._budget -= tokens
        return 1

    def take_context(self, request: LlmRequest) -> int | None:
        if self._scheduler.ctx_chunk_config is not None:
            self._set_aside(request)
            return 1
        tokens = self._scheduler.cost_of_prompt(request)
        if tokens > self._budget:
            return None
        self._checked(request, tokens)
        request.context_chunk_size = request.context_remaining_length
        self._context.append(request)
        self._budget -= tokens
        return 1

    def finish(self) -> tuple[RequestList, RequestList, RequestList]:
        """Assign the chunks. Return the requests that run, in the order in which the runtime needs them."""
        context, chunked = self._context, False
        if self._to_chunk:
            context, chunked = self._chunk_contexts()
        if chunked:
            # The runtime needs the prompts that go on before those that end.
            context.sort(key=lambda request: (request.is_last_context_chunk, *_adapter_order(request)))
        else:
            _sort_by_adapter(context)
        _sort_by_adapter(self._generation)
        _sort_by_adapter(self._encoder)
        return self._encoder, context, self._generation

    def _checked(self, request: LlmRequest, tokens: int) -> int:
        if tokens > self._longest:
            raise ValueError(f"request {request.request_id} has {tokens} tokens, and one step takes at most {self._longest}")
        return tokens

    def _set_aside(self, request: LlmRequest) -> None:
        """Note that `request` takes part in the sharing of the tokens that are left."""
        remaining = request.context_chunk_size = request.context_remaining_length
        tokens = self._scheduler.assignment.cost_of(remaining, reusable_tokens(request), remaining) + request.num_draft_tokens
        if tokens > self._longest:
            tokens, self._must_chunk = self._longest, True
        self._tokens_to_chunk += tokens
        self._to_chunk.append(request)

    def _chunk_contexts(self) -> tuple[RequestList, bool]:
        """Return the prompts that run, and whether they have been cut."""
        scheduler, config = self._scheduler, self._scheduler.ctx_chunk_config
        assert config is not None
        forced = config.chunking_policy is ChunkingPolicy.FORCE_CHUNK
        if not (forced or self._must_chunk or self._tokens_to_chunk > self._budget):
            return self._to_chunk, False
        capacity = None if scheduler.max_num_tokens is None else self._budget
        limits = ChunkLimits(config.chunk_unit_size, capacity, scheduler.max_context_length)
        scheduler.assignment.assign(config.chunking_policy, self._to_chunk, limits)
        return [request for request in self._to_chunk if request.context_chunk_size], True


def _sort_by_adapter(requests: RequestList) -> None:
    """Put requests of one adapter side by side, those without one first."""
    if any(request.lora_task_id is not None for request in requests):
        requests.sort(key=_adapter_order)


def _adapter_order(request: LlmRequest) -> tuple[bool, int]:
    adapter = request.lora_task_id
    return (adapter is not None, adapter or 0)
