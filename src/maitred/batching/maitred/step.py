"""MaitredStep: the planning of one step of `MaitredScheduler`, which says by what rules.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from maitred.batching.maitred.memory_forecast import MemoryForecast
from maitred.batching.maitred.prompt_shares import PromptRest
from maitred.batching.maitred.state import Lack, MaitredState
from maitred.batching.maitred.victims import choose_victim
from maitred.batching.trtllm.capacity_budgets import PromisedBlocks
from maitred.batching.trtllm.context_chunking import UNLIMITED
from maitred.batching.trtllm.kv_cache_view import NO_MATCH, ReusedPrefix
from maitred.batching.trtllm.llm_request import LlmRequest, LlmRequestState, RequestList
from maitred.batching.trtllm.schedulers import SchedulerOutput

_GENERATING: Final = LlmRequestState.GENERATION_IN_PROGRESS  # members of enums are slow to look up
_FINISHING: Final = LlmRequestState.GENERATION_TO_COMPLETE
_COMPLETE: Final = LlmRequestState.GENERATION_COMPLETE
_SEATS: Final = Lack("all places in the batch are taken")
_PAUSED: Final = Lack("it was paused, and no request has ended since")
_PREFIX: Final = Lack("another request computes the block of its prompt that it needs first")
_TOKENS: Final = Lack("the tokens of the step are used up")
_PASSED: Final = Lack("a request before it has been passed as often as may be")


class MaitredStep:
    """A step that is being planned."""

    def __init__(self, state: MaitredState, active_requests: RequestList, inflight_request_ids: Set[int]) -> None:
        self._state = state
        self._kv_cache = state.kv_cache
        self._block_size = state.kv_cache.tokens_per_block
        self._half_block = self._block_size // 2
        self._active = active_requests
        self._generation: RequestList = []
        """Requests that get a token."""
        self._held: RequestList = []
        """Requests that have memory and do nothing in this step."""
        self._pending: list[tuple[int, LlmRequest]] = []
        """Requests without memory, with their places."""
        self._prompts: list[PromptRest] = []
        self._rest_tokens = 0
        """Tokens that all of `_prompts` have to compute."""
        self._paused: RequestList = []
        self._tokens = state.max_num_tokens
        self._free_blocks = 0
        """Free blocks of the first window, with those of the paused requests."""
        self._spare: Sequence[int] = ()
        """Blocks by window that are free beside those of this step."""
        self._capacity = 0
        """Tokens for which there are blocks, in `_forecast`."""
        self._forecast: MemoryForecast | None = None
        self._horizon = UNLIMITED
        """Steps that `_forecast` looks ahead."""
        self._promises: PromisedBlocks | None = None
        self._lacks: dict[int, Lack] = {}
        self._sort(active_requests, inflight_request_ids)

    def _sort(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> None:
        """Find out what each request is here for. Those that generate take a token each. Raises ValueError for a request that
        would take more, or that is in a state which this scheduler does not serve."""
        if self._state.serves_an_engine:
            _check_tokens_per_step(active_requests)
        most, tokens, generation = self._state.max_running, self._tokens, self._generation
        # Most requests generate, and mostly all of them have tokens. Asking for the state itself is twice as fast as asking for
        # what it means.
        generating = [request for request in active_requests if request.state == _GENERATING]
        if len(generating) <= min(tokens, most) and not inflight_request_ids:
            self._generation, self._tokens = generating, tokens - len(generating)
            others = [entry for entry in enumerate(active_requests) if entry[1].state != _GENERATING]
            for place, request in others:
                self._sort_in(place, request, is_in_flight=False)
            return
        for place, request in enumerate(active_requests):
            is_in_flight = request.request_id in inflight_request_ids
            if request.state == _GENERATING and not is_in_flight and len(generation) < min(tokens, most):
                generation.append(request)
            else:
                self._sort_in(place, request, is_in_flight=is_in_flight)
        self._tokens = tokens - len(generation)

    def plan(self) -> SchedulerOutput:
        """Return the plan of the step."""
        state = self._state
        self._make_room()
        # Beside no decode a step of prompts may be as long as it likes: it keeps nobody waiting for a next token.
        if self._generation or self._held:
            self._tokens = min(self._tokens, state.max_prefill_tokens)
        if not self._paused:  # what a pause frees is for those that generate
            self._admit_pending()
        state.lacks = self._lacks
        if state.skips:
            waiting = {request.request_id for _, request in self._pending}.difference(
                [p.request.request_id for p in self._prompts]
            )
            state.skips = {number: times for number, times in state.skips.items() if number in waiting}
        if self._prompts:
            state.shares.assign(self._prompts, self._tokens)
        places = state.max_running - len(self._generation)
        context = [_with_chunk(prompt) for prompt in self._prompts if prompt.chunk][:places]
        context.sort(key=lambda request: request.is_last_context_chunk)  # as TensorRT-LLM's runtime needs them
        fitting = self._num_running
        return SchedulerOutput(context, self._generation, self._paused, [], fitting)

    def _sort_in(self, place: int, request: LlmRequest, *, is_in_flight: bool) -> None:
        state = request.state
        if state in (_GENERATING, _FINISHING):
            self._held.append(request)
        elif request.is_context_init_state:
            if is_in_flight:
                self._held.append(request)
            elif request.is_first_context_chunk:
                self._pending.append((place, request))
            else:
                self._add_prompt(PromptRest(request, place, request.context_remaining_length))
        elif state != _COMPLETE:  # which has nothing left to be planned
            raise ValueError(
                f"request {request.request_id} is in state {LlmRequestState(state).name}: "
                "the scheduler maitred serves prompts and answers, without encoders and without KV from another instance"
            )

    def _add_prompt(self, prompt: PromptRest) -> None:
        self._prompts.append(prompt)
        self._rest_tokens += prompt.rest

    @property
    def _num_running(self) -> int:
        return len(self._generation) + len(self._prompts)

    def _make_room(self) -> None:
        """Pause requests until those that generate find the blocks of their tokens."""
        needed = list(self._kv_cache.blocks_for_next_step_of_all(self._generation, two_step_lookahead=False))
        free: Sequence[int] = self._kv_cache.free_blocks
        self._free_blocks = free[0]
        if not _fits(needed, free):
            releases, deficit = self._kv_cache.start_scheduling(), self._foreseen_deficit()
            while not _fits(needed, free):
                started = [*self._generation, *[prompt.request for prompt in self._prompts]]
                victim = choose_victim(started, deficit, self._state.max_pauses, self._block_size)
                if victim is None:
                    break
                self._pause(victim, needed)
                releases.release(victim)
                free = releases.free_blocks
            self._state.on_pause(self._paused, self._num_running)
            self._forecast, self._free_blocks = None, free[0]
        self._spare = [blocks - taken for blocks, taken in zip(free, needed, strict=True)]

    def _pause(self, victim: LlmRequest, needed: list[int]) -> None:
        """Take `victim` out of the step, and what it was to take out of `needed`."""
        self._paused.append(victim)
        if victim.is_context_init_state:
            self._prompts = [prompt for prompt in self._prompts if prompt.request is not victim]
            self._rest_tokens = sum([prompt.rest for prompt in self._prompts])
            return
        self._generation.remove(victim)
        self._tokens += 1
        for window, blocks in enumerate(self._kv_cache.blocks_for_next_step(victim, NO_MATCH)):
            needed[window] -= blocks

    def _foreseen_deficit(self) -> int:
        """Return how many blocks will be missing if no request is paused; at least 1."""
        peak = self._memory_forecast().peak
        missing = peak - self._capacity
        return max(1, -(-missing // self._block_size))

    def _admit_pending(self) -> None:
        """Admit requests in their order, and a few behind one that does not fit."""
        state, num_misfits = self._state, 0
        passed: RequestList = []
        if len(self._pending) > 1:
            self._pending.sort(key=lambda entry: -entry[1].priority)
        for place, request in self._pending:
            if num_misfits > state.look_past:
                return
            if any(state.skips.get(before.request_id, 0) >= state.max_skips for before in passed):
                self._lacks[request.request_id] = _PASSED
                return
            lack = self._try_admit(place, request)
            if lack is None:
                for before in passed:
                    state.skips[before.request_id] = state.skips.get(before.request_id, 0) + 1
                continue
            self._lacks[request.request_id] = lack
            if lack.is_of_memory and request.priority > state.lowest_priority and self._displace_for(request, lack):
                return
            if lack is _SEATS:
                return  # a place is free only when a request ends, so those behind lack it as well
            num_misfits += 1
            if lack is not _PREFIX:  # which it waits for of its own will
                passed.append(request)

    def _try_admit(self, place: int, request: LlmRequest) -> Lack | None:
        """Admit `request`, or return what it lacks."""
        state, is_alone = self._state, not (self._generation or self._prompts or self._held)
        if self._num_running + len(self._held) >= min(state.max_running, state.max_num_tokens):
            return _SEATS
        # Until a request ends there is no more memory than when this one lost its own, and it would soon be the victim again.
        if request.num_pauses and not (state.has_ended or is_alone):
            return _PAUSED
        match = self._match(request)
        if match is None:
            return _PREFIX
        prompt = self._prompt_of(place, request, match)
        if not self._finds_tokens(prompt):
            return _TOKENS
        # The first chunk takes the blocks of the whole prompt: a half-computed one that finds no block would hold memory for
        # nothing.
        needed = self._kv_cache.blocks_for_next_step(request, match)
        if not _fits(needed, self._spare):
            text = "its prompt needs {needed} KV blocks, and {available} are free"
            return Lack(text, needed[0], self._spare[0], is_of_memory=True)
        # Alone it begins whatever is foreseen: nothing else could end and make room for it.
        if not is_alone:
            lack = self._future_lack(request, match)
            if lack is not None:
                return lack
        self._admit(request, prompt, match, needed)
        return None

    def _admit(self, request: LlmRequest, prompt: PromptRest, match: ReusedPrefix, needed: Sequence[int]) -> None:
        self._spare = [blocks - taken for blocks, taken in zip(self._spare, needed, strict=True)]
        self._state.skips.pop(request.request_id, None)
        self._state.lowest_priority = min(self._state.lowest_priority, request.priority)
        if self._promises is not None:
            self._promises.promise(request)
        if self._forecast is not None:
            left = min(self._horizon, *self._state.tokens_left([request]))
            self._forecast.add(left, self._tokens_held(request, match.num_referenced_blocks))
        self._add_prompt(prompt)
        if request.num_pauses:
            self._state.on_return(prompt.rest / request.prompt_len)

    def _displace_for(self, request: LlmRequest, lack: Lack) -> bool:
        """Pause requests that are less urgent than `request`, one after the other, until there is memory for it, and return
        True; or pause none, if they do not suffice. It is the first to be admitted in the next step."""
        state, releases = self._state, self._kv_cache.start_scheduling()
        started = [*self._generation, *[prompt.request for prompt in self._prompts if prompt.request.is_started]]
        victims = [each for each in started if each.priority < request.priority and each.num_pauses < state.max_pauses]
        chosen: RequestList = []
        missing = UNLIMITED
        while missing > 0:
            victim = choose_victim(victims, 1, state.max_pauses, self._block_size)
            if victim is None:
                lack.lasts = min(lack.lasts, missing)
                return False
            victims.remove(victim)
            chosen.append(victim)
            releases.release(victim)
            missing = self._missing_without(chosen, request, releases.free_blocks[0])
        for victim in chosen:
            self._pause(victim, [0 for _ in self._spare])
        state.has_ended = False  # The paused come back after an end: what they have left is for `request`.
        return True

    def _missing_without(self, paused: RequestList, request: LlmRequest, free_blocks: int) -> int:
        """Return how many tokens of memory `request` would lack once `paused` have left and `free_blocks` blocks are free; 0 or
        less if none."""
        gone = {each.request_id for each in paused}
        beside = [each for each in self._with_memory() if each.request_id not in gone]
        # Each request that generates may open a block before the next step.
        if self._kv_cache.blocks_for_next_step(request, NO_MATCH)[0] + len(beside) > free_blocks:
            return UNLIMITED
        if not beside:
            return 0
        forecast, horizon, capacity = self._foresee(beside, free_blocks)
        left = min(horizon, *self._state.tokens_left([request]))
        return forecast.missing(left, self._tokens_held(request, 0), capacity)

    def _match(self, request: LlmRequest) -> ReusedPrefix | None:
        """Return the cached prefix of `request`, or None if it is better to wait for a block that is computed."""
        kv_cache = self._kv_cache
        if not kv_cache.enable_block_reuse or len(kv_cache.free_blocks) > 1:
            return NO_MATCH
        if self._promises is None:
            self._promises = PromisedBlocks([kv_cache])
            for prompt in self._prompts:
                self._promises.promise(prompt.request)
        if self._promises.is_promised(request):
            return None
        return self._promises.match(request)

    def _prompt_of(self, place: int, request: LlmRequest, match: ReusedPrefix) -> PromptRest:
        """Return the prompt of `request`, which is about to begin."""
        # The last token is always computed, or none could come out.
        cached = min(match.num_cached_blocks, (request.prompt_len - 1) // self._block_size) * self._block_size
        request.estimated_reusable_tokens = cached
        return PromptRest(request, place, max(1, min(request.context_remaining_length, request.prompt_len - cached)))

    def _finds_tokens(self, prompt: PromptRest) -> bool:
        """Return whether `prompt` gets tokens in this step, and no prompt that was admitted before it loses all of its own."""
        shares = self._state.shares
        if self._rest_tokens + prompt.rest <= self._tokens and prompt.rest <= shares.longest:
            return True
        shares.assign([*self._prompts, prompt], self._tokens)
        starved = [other for other in self._prompts if other.request.is_first_context_chunk and not other.chunk]
        return prompt.chunk > 0 and not starved

    def _future_lack(self, request: LlmRequest, match: ReusedPrefix) -> Lack | None:
        """Return the lack of memory that `request` would have later, or None if it is predicted to suffice."""
        kv_cache, most = self._kv_cache, self._state.max_pauses
        if request.num_pauses >= most:
            # It may not be paused again, so its longest answer counts, and those of the others like it.
            taken = sum(
                [kv_cache.get_needed_resource_to_completion(other) for other in self._with_memory() if other.num_pauses >= most]
            )
            needed, total = kv_cache.get_needed_resource_to_completion(request), kv_cache.get_max_resource_count()
            if needed + taken > total:
                text = "it may not be paused again, and of the {needed} KV blocks that it may need {available} are left"
                return Lack(text, needed, total - taken)
        forecast = self._memory_forecast()
        held = self._tokens_held(request, match.num_referenced_blocks)
        left = min(self._horizon, *self._state.tokens_left([request]))
        missing = forecast.missing(left, held, self._capacity)
        if missing <= 0:
            return None
        text = "it is predicted to need {needed} KV tokens, {available} more than there will be"
        return Lack(text, held + left, missing, missing, is_of_memory=True)

    def _with_memory(self) -> RequestList:
        """Return the requests that have memory in this step."""
        return [*self._generation, *self._held, *[prompt.request for prompt in self._prompts]]

    def _memory_forecast(self) -> MemoryForecast:
        if self._forecast is None:
            self._forecast, self._horizon, self._capacity = self._foresee(self._with_memory(), self._free_blocks)
        return self._forecast

    def _foresee(self, requests: RequestList, free_blocks: int) -> tuple[MemoryForecast, int, int]:
        """Return the forecast for `requests`, beside which `free_blocks` blocks are free; how many steps it looks ahead; and
        how many tokens there are blocks for."""
        state, size, half_block = self._state, self._block_size, self._half_block
        horizon = state.horizon(len(requests))
        needs, owned = [], 0
        for request, left in zip(requests, state.tokens_left(requests), strict=True):
            generated = request.num_generated_tokens
            held = request.prompt_len + generated + half_block - request.num_shared_blocks * size  # as `_tokens_held` says
            needs.append((left if left < horizon else horizon, held))
            no_kv_yet = 1 if generated else 0  # the token that came out last
            owned += (held - half_block - no_kv_yet + size - 1) // size
        total = self._kv_cache.get_max_resource_count()
        # Shared blocks of which the first owner has ended are no request's own.
        ownerless = max(0, total - free_blocks - owned) if self._kv_cache.enable_block_reuse else 0
        return MemoryForecast(needs), horizon, (total - ownerless) * size

    def _tokens_held(self, request: LlmRequest, shared_blocks: int) -> int:
        """Return the tokens of KV that `request` has in blocks that it does not share, with the mean rest of a last block."""
        return request.prompt_len + request.num_generated_tokens + self._half_block - shared_blocks * self._block_size


def _fits(needed: Sequence[int], free: Sequence[int]) -> bool:
    return all(blocks <= there for blocks, there in zip(needed, free, strict=True))


def _check_tokens_per_step(requests: RequestList) -> None:
    """Raise ValueError for a request with beams or drafts: a step would have more tokens than were counted."""
    for request in requests:  # in every step, because an engine drafts anew for each
        if request.num_draft_tokens or request.beam_width != 1:
            raise ValueError(
                f"request {request.request_id} has beams: {request.beam_width}, draft tokens: {request.num_draft_tokens}; "
                "the scheduler maitred gives each request that generates one token, so it serves one beam without drafts"
            )


def _with_chunk(prompt: PromptRest) -> LlmRequest:
    """Return the request of `prompt` with its chunk. What is found in the cache counts to a chunk that ends the prompt."""
    request = prompt.request
    request.context_chunk_size = request.context_remaining_length if prompt.chunk == prompt.rest else prompt.chunk
    return request
