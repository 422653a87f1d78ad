"""MaitredScheduler: the batching of flavour `maitred`.

It decides from what will happen, where the policies of `capacity.py` decide from the worst case (guaranteed-no-evict: every
answer becomes as long as its client allows) or from the next step alone (max-utilization). Each step:

    1. Every request that generates gets its token first, so decodes never wait for prompts. If their blocks are not free, the
       request is paused that costs least (`victims.py`): of the least urgent, the one with the fewest tokens to compute again
       that frees enough for the need that is foreseen.
    2. A request that waits is admitted if the blocks of its whole prompt are free, so that no half-computed prompt is stuck,
       and if the memory will suffice: the answers are predicted from those that are complete (`answer_lengths.py`), and the
       largest need until it ends must fit (`memory_forecast.py`). With much memory that admits all, as max-utilization does;
       the less there is, the nearer it comes to guaranteed-no-evict.
    3. The prompts share the tokens that are left (`prompt_shares.py`).

**When predictions fail.** A pause says that they were too low: predicted lengths are raised by a half, up to `_MOST_CAUTION`
times, and fall back as requests complete. A paused request does not return before another one has ended, and is never paused
more than `max_pauses` times: then it returns only when the blocks for its longest answer are free beside those of the others
that came back like that. Their needs together never exceed the memory, so there is always another victim.

**A request that does not fit blocks no other one, and is not starved.** `look_past` requests behind it are tried. When it has
been passed `max_skips` times, no later one is admitted before it. Urgent requests come before others in everything, and are
not counted as having passed them.

Example: 1,000 blocks, answers of 100 or 900 tokens so far. 40 requests of 300 tokens run, each allowed 4,000 tokens. Under
guaranteed-no-evict 3 of them would run. Under max-utilization a 50th would begin at once, and be paused when the answers have
grown. Here it begins when the peak fits: when enough of the short answers are about to end.

A decision stays the same through steps that only generate until the memory may suffice for a request that waits, which is at
least as many steps as it lacks tokens.
"""

from __future__ import annotations

from collections.abc import Set

from maitred.batching.batch_schedulers import BATCH_SCHEDULERS
from maitred.batching.capacity_budgets import PeftCacheView
from maitred.batching.context_chunking import UNLIMITED, ContextChunkingConfig
from maitred.batching.kv_cache_view import KvCacheView
from maitred.batching.llm_request import LlmRequest, RequestList
from maitred.batching.maitred_state import MaitredState
from maitred.batching.maitred_step import MaitredStep
from maitred.batching.prompt_shares import PromptShares
from maitred.batching.schedulers import RequestScheduler, SchedulerOutput


@BATCH_SCHEDULERS.register("maitred")
class MaitredScheduler(RequestScheduler):
    """A request begins when the memory will suffice if answers become as long as those so far; short prompts go first."""

    repeats_its_answer: bool = True
    shares_each_chunk: bool = True

    def __init__(
        self,
        max_num_requests: int,
        kv_cache_manager: KvCacheView,
        max_batch_size: int,
        max_num_tokens: int | None = None,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
        peft_cache_manager: PeftCacheView | None = None,
        *,
        look_past: int = 8,
        max_skips: int = 16,
        max_pauses: int = 2,
        first_share: float = 0.5,
        max_prefill_tokens: int | None = None,
    ) -> None:
        """`look_past`: requests tried behind one that does not fit. `max_skips`: how often one may be passed. `max_pauses`: how
        often one may be paused. `first_share`: share of the prompt tokens of a step that the prompt that came first keeps.
        `max_prefill_tokens`: most prompt tokens in a step that also generates; None for no limit but the step's."""
        for name, value in (("look_past", look_past), ("max_skips", max_skips), ("max_pauses", max_pauses)):
            if value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")
        if not 0 < first_share <= 1:
            raise ValueError(f"first_share must be above 0 and at most 1, not {first_share}")
        if max_prefill_tokens is not None and max_prefill_tokens < 1:
            raise ValueError(f"max_prefill_tokens must be at least 1, not {max_prefill_tokens}")
        self.max_num_pending = look_past + 1
        self._state = MaitredState(
            kv_cache_manager,
            peft_cache_manager,
            PromptShares(
                first_share,
                1 if ctx_chunk_config is None else ctx_chunk_config.chunk_unit_size,
                UNLIMITED if max_context_length is None else max_context_length,
                whole_only=ctx_chunk_config is None,
            ),
            min(max_num_requests, max_batch_size),
            UNLIMITED if max_num_tokens is None else max_num_tokens,
            UNLIMITED if max_prefill_tokens is None else max_prefill_tokens,
            look_past,
            max_skips,
            max_pauses,
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
