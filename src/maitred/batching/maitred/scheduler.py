"""MaitredScheduler: the batching of flavour `maitred`.

It decides from what will happen, where the policies of `capacity.py` decide from the worst case (guaranteed-no-evict: every
answer becomes as long as its client allows) or from the next step alone (max-utilization). Each step:

    1. Every request that generates gets its token first, so decodes never wait for prompts. If their blocks are not free, the
       request is paused that costs least (`victims.py`).
    2. A request that waits is admitted if the blocks of its whole prompt are free, so that no half-computed prompt is stuck,
       and if the memory will suffice: how long answers become is learned (`answer_lengths.py`), and what is held at most until
       this request ends, or until it has been worth a pause (`state.py`), must fit (`memory_forecast.py`).
    3. The prompts share the tokens that are left (`prompt_shares.py`): while requests generate, no more than
       `max_prefill_tokens`, so that none waits longer for its next token than such a step takes.

With much memory that admits all, as max-utilization does. The less there is, and the more a pause costs, the nearer it comes to
guaranteed-no-evict.

**When predictions fail.** If a request is paused before it was worth it, predicted lengths are raised by a tenth, up to four
times, and fall back as requests complete. A paused request does not return before another one has ended, and is never paused
more than `max_pauses` times: then it returns only when the blocks of its longest answer are free beside those of the others
that came back like that. Their needs together never exceed the memory, so there is always another victim.

**A request that does not fit blocks no other one, and is not starved.** `look_past` requests behind it are tried. When it has
been passed `max_skips` times, no later one is admitted before it. Urgent requests come before others in everything, which is
not counted as passing. If one lacks memory, and less urgent ones that may still be paused hold enough of it, they are paused,
and it begins in the next step. A place in the batch is no reason for that: it costs the KV of a request to free one.

Example: 1,000 blocks of 16 tokens, and 12 requests that hold 1,000 tokens each. They are allowed 4,000 tokens, and answers had
100 or 900 tokens so far, half of them each. Under guaranteed-no-evict 3 requests would run. Under max-utilization three more
would begin at once, and requests be paused when the answers have grown. Here a 13th begins when the sum of what is held, just
before each of the predicted ends, stays below 16,000 tokens.

**The share of the decodes.** If v prompt tokens are computed in the time of a step that only generates, a step with p of them
takes (p + v) / v times as long, and p / (p + v) of it goes into prompts. By default p is 32 v (v is half of `prefill_speed`,
see `state.py`): prompts lose 3 % of their speed, and a decode that rides along waits for its next token at most 33
times as long as by itself, however long the prompts are.

A decision stays the same through steps that only generate, for as many of them as a request that waits lacks tokens.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from maitred.batching.batch_schedulers import BATCH_SCHEDULERS
from maitred.batching.maitred.prompt_shares import PromptShares
from maitred.batching.maitred.state import MaitredState
from maitred.batching.maitred.step import MaitredStep
from maitred.batching.trtllm.context_chunking import UNLIMITED, ContextChunkingConfig
from maitred.batching.trtllm.kv_cache_view import KvCacheView
from maitred.batching.trtllm.llm_request import LlmRequest, RequestList
from maitred.batching.trtllm.schedulers import RequestScheduler, SchedulerOutput

_STEPS_OF_PROMPTS: Final = 16
"""Default of `max_prefill_tokens`, in `prefill_speed`: what prompts lose by it, and decodes wait, is in the docstring above."""


@BATCH_SCHEDULERS.register("maitred")
class MaitredScheduler(RequestScheduler):
    """A request begins when the memory will suffice if answers become as long as those so far; short prompts go first."""

    repeats_its_answer: bool = True
    repeats_lone_chunk: bool = True
    shares_each_chunk: bool = True

    def __init__(
        self,
        max_num_requests: int,
        kv_cache_manager: KvCacheView,
        max_batch_size: int,
        max_num_tokens: int | None = None,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
        *,
        look_past: int = 8,
        max_skips: int = 16,
        max_pauses: int = 2,
        first_share: float = 0.9,
        max_prefill_tokens: int | None = None,
        prefill_speed: int = 256,
    ) -> None:
        """`look_past`: requests tried behind one that does not fit. `max_skips`: how often one may be passed. `max_pauses`: how
        often one may be paused. `first_share`: share of the prompt tokens of a step that the prompt that came first keeps.
        `max_prefill_tokens`: most prompt tokens in a step that also generates; None for 16 times `prefill_speed`, or for no
        limit if prompts are computed whole.
        `prefill_speed`: prompt tokens that are computed in the time of a step that only generates (`state.py`)."""
        for name, value in (("look_past", look_past), ("max_skips", max_skips), ("max_pauses", max_pauses)):
            if value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")
        if not 0 < first_share <= 1:
            raise ValueError(f"first_share must be above 0 and at most 1, not {first_share}")
        for name, least_1 in (("max_prefill_tokens", max_prefill_tokens), ("prefill_speed", prefill_speed)):
            if least_1 is not None and least_1 < 1:
                raise ValueError(f"{name} must be at least 1, not {least_1}")
        self.max_num_pending = look_past + 1
        shares = PromptShares(
            first_share,
            1 if ctx_chunk_config is None else ctx_chunk_config.chunk_unit_size,
            UNLIMITED if max_context_length is None else max_context_length,
            whole_only=ctx_chunk_config is None,
        )
        # A prompt that is computed whole must fit into one step, whatever decodes beside it.
        most_beside_decodes = UNLIMITED if ctx_chunk_config is None else _STEPS_OF_PROMPTS * prefill_speed
        self._state = MaitredState(
            kv_cache_manager,
            shares,
            max_running=min(max_num_requests, max_batch_size),
            max_num_tokens=UNLIMITED if max_num_tokens is None else max_num_tokens,
            max_prefill_tokens=max_prefill_tokens or most_beside_decodes,
            look_past=look_past,
            max_skips=max_skips,
            max_pauses=max_pauses,
            prefill_speed=prefill_speed,
        )

    def schedule_request(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> SchedulerOutput:
        return MaitredStep(self._state, active_requests, inflight_request_ids).plan()

    def max_repeats(self, limit: int) -> int:
        return max(1, min([limit, *[lack.lasts for lack in self._state.lacks.values()]]))

    def on_request_end(self, request: LlmRequest, *, is_complete: bool) -> None:
        self._state.on_request_end(request, is_complete=is_complete)

    def why_waiting(self, request: LlmRequest) -> str | None:
        lack = self._state.lacks.get(request.request_id)
        return None if lack is None else str(lack)
