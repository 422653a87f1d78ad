"""MaitredState: what `MaitredScheduler` knows from step to step. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from typing import Final

from maitred.batching.answer_lengths import AnswerLengths
from maitred.batching.capacity_budgets import PeftCacheView
from maitred.batching.context_chunking import UNLIMITED
from maitred.batching.kv_cache_view import KvCacheView
from maitred.batching.llm_request import LlmRequest
from maitred.batching.prompt_shares import PromptShares

_MOST_CAUTION: Final = 4.0
_ALARM: Final = 1.5
"""Factor on the caution with each step that pauses requests."""
_RELAXING: Final = 1 / 64
"""Share of the caution that goes with each complete request."""


class Lack:
    """Why a request waits."""

    __slots__ = ("_available", "_needed", "_text", "lasts")

    def __init__(self, text: str, needed: int = 0, available: int = 0, lasts: int = UNLIMITED) -> None:
        """`lasts` is the number of steps that only generate for which the request waits at least."""
        self._text = text
        self._needed = needed
        self._available = available
        self.lasts = lasts

    def __str__(self) -> str:
        return self._text.format(needed=self._needed, available=self._available)


class MaitredState:
    """The limits of a scheduler, and what it has learned."""

    def __init__(
        self,
        kv_cache: KvCacheView,
        peft_cache: PeftCacheView | None,
        shares: PromptShares,
        max_running: int,
        max_num_tokens: int,
        max_prefill_tokens: int,
        look_past: int,
        max_skips: int,
        max_pauses: int,
    ) -> None:
        self.kv_cache = kv_cache
        self.peft_cache = peft_cache
        self.shares = shares
        self.max_running = max_running
        self.max_num_tokens = max_num_tokens
        self.max_prefill_tokens = max_prefill_tokens
        self.look_past = look_past
        self.max_skips = max_skips
        self.max_pauses = max_pauses
        self.lengths = AnswerLengths()
        self.caution = 1.0
        """Factor on predicted lengths."""
        self.has_ended = True
        """Whether a request has ended since the last pause."""
        self.skips: dict[int, int] = {}
        """How often each waiting request has been passed."""
        self.lacks: dict[int, Lack] = {}
        """Why requests wait, as of the last step."""

    def on_pause(self) -> None:
        """Note that requests are paused in a step: their answers became longer than foreseen."""
        self.has_ended = False
        self.caution = min(_MOST_CAUTION, self.caution * _ALARM)

    def on_request_end(self, request: LlmRequest, *, is_complete: bool) -> None:
        """Note that `request` has ended, and learn from its answer if that is complete."""
        self.has_ended = True
        if is_complete:
            self.lengths.observe(max(1, request.num_tokens_before + request.num_generated_tokens), _limit(request))
            self.caution += (1.0 - self.caution) * _RELAXING

    def tokens_left(self, request: LlmRequest) -> int:
        """Return how many tokens `request` will still emit, as far as can be foreseen; at least 1."""
        so_far = request.num_tokens_before + request.num_generated_tokens
        length = int(self.caution * self.lengths.predict(request.request_id, so_far, _limit(request)))
        return max(1, min(length - so_far, request.max_new_tokens - request.num_generated_tokens))


def _limit(request: LlmRequest) -> int | None:
    """Return how long the whole answer of `request` may be, or None if its client said nothing."""
    return request.num_tokens_before + request.max_new_tokens if request.has_token_limit else None
