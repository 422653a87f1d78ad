"""MaitredState: what `MaitredScheduler` knows from step to step.

**The horizon.** What a pause costs is small beside what a request does before it, if that is long enough. A request that runs
for D steps beside n others has brought D tokens that it would not have brought while it waited. If it is paused then, its KV
is computed again: with s tokens of it and v prompt tokens that are computed in the time of a step, s / v steps, in which n
requests emit nothing. So it was worth beginning if

    D > n × s / v

and the memory need not be foreseen farther. A GPU computes v = flops × utilisation / bandwidth prompt tokens in the time that
it takes to read the weights once: 93 on H200 and 133 on H100 in half precision. (`prefill_speed` is about twice that, since the
horizon is the least number of steps, and the mean is about twice as long.) With a prefix cache a part of s is still cached when
the request returns. How large it is follows from those that have returned.

Example: 20 requests run, with 3,000 tokens of KV each and answers of up to 4,000. The horizon is 234 steps: one more is
admitted if the memory suffices for 234 steps, although it will not for 4,000. With 12,000 tokens each, 50 requests and
answers of 300, it is 2,300 steps, more than answers have: then a request is admitted only if none will have to be paused.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from maitred.batching.instance_kv_cache import InstanceKvCache
from maitred.batching.maitred.answer_lengths import AnswerLengths
from maitred.batching.maitred.prompt_shares import PromptShares
from maitred.batching.trtllm.context_chunking import UNLIMITED
from maitred.batching.trtllm.kv_cache_view import KvCacheView
from maitred.batching.trtllm.llm_request import LlmRequest, RequestList

_MOST_CAUTION: Final = 4.0
"""The most that predicted lengths are multiplied by: answers of another kind than those before may be several times as long.
XXX: a guess. To be measured: how much longer answers become when recorded traffic changes."""
_ALARM: Final = 1.1
"""Factor on the caution with each step that pauses a request too early. Where predictions are right on average, about one
request in a hundred is."""
_RELAXING: Final = 1 / 64
"""Share of the caution that goes with each complete request, and weight of one request in the mean size."""


class Lack:
    """Why a request waits."""

    __slots__ = ("_available", "_needed", "_text", "is_of_memory", "lasts")

    def __init__(
        self, text: str, needed: int = 0, available: int = 0, lasts: int = UNLIMITED, *, is_of_memory: bool = False
    ) -> None:
        """`lasts` is the number of steps that only generate for which the request waits at least. `is_of_memory`: memory
        is missing, which others have."""
        self._text = text
        self._needed = needed
        self._available = available
        self.lasts = lasts
        self.is_of_memory = is_of_memory

    def __str__(self) -> str:
        return self._text.format(needed=self._needed, available=self._available)


class MaitredState:
    """The limits of a scheduler, and what it has learned."""

    def __init__(
        self,
        kv_cache: KvCacheView,
        shares: PromptShares,
        *,
        max_running: int,
        max_num_tokens: int,
        max_prefill_tokens: int,
        look_past: int,
        max_skips: int,
        max_pauses: int,
        prefill_speed: int,
    ) -> None:
        self.kv_cache = kv_cache
        self.serves_an_engine = not isinstance(kv_cache, InstanceKvCache)
        """Whether the requests come from elsewhere than an instance, whose requests have one beam and no drafts."""
        self.shares = shares
        self.max_running = max_running
        self.max_num_tokens = max_num_tokens
        self.max_prefill_tokens = max_prefill_tokens
        self.look_past = look_past
        self.max_skips = max_skips
        self.max_pauses = max_pauses
        self.prefill_speed = prefill_speed
        self.mean_size = 0.0
        """KV tokens of requests in the middle of their answers: the mean over those that are complete, in which old ones fade;
        0 before the first."""
        self.lengths = AnswerLengths()
        # A guess until the first one returns: half of what it had is cached still.
        self.recomputed_share = 0.5 if kv_cache.enable_block_reuse else 1.0
        """Share of its KV that a request computes again after a pause: the rest is still cached. A mean over those that came
        back, in which old ones fade."""
        self.caution = 1.0
        """Factor on predicted lengths."""
        self.has_ended = True
        """Whether a request has ended since the last pause."""
        self.skips: dict[int, int] = {}
        """How often each waiting request has been passed."""
        self.lowest_priority = inf
        """The lowest priority of the requests so far that began."""
        self.lacks: dict[int, Lack] = {}
        """Why requests wait, as of the last step."""

    def on_pause(self, victims: RequestList, num_running: int) -> None:
        """Note that `victims` are paused in a step, beside `num_running` others. If one of them has not run for the horizon,
        the memory did not last as long as foreseen: answers become longer than predicted."""
        self.has_ended = False
        horizon = self.horizon(num_running)
        if any(victim.num_generated_tokens < horizon for victim in victims):
            self.caution = min(_MOST_CAUTION, self.caution * _ALARM)

    def on_request_end(self, request: LlmRequest, *, is_complete: bool) -> None:
        """Note that `request` has ended, and learn from its answer if that is complete."""
        self.has_ended = True
        if is_complete:
            # The whole answer counts, with what was generated before its pauses and is a part of its prompt by now.
            self.lengths.observe(max(1, request.num_tokens_before + request.num_generated_tokens), _limit(request))
            size = request.prompt_len + request.num_generated_tokens / 2  # running ones are halfway on average
            self.mean_size += (size - self.mean_size) * (_RELAXING if self.mean_size else 1.0)
            self.caution += (1.0 - self.caution) * _RELAXING

    def horizon(self, num_running: int) -> int:
        """Return for how many steps the memory must suffice for a request to begin, beside `num_running` that have begun."""
        if not self.mean_size:
            return UNLIMITED
        return 1 + int(self.recomputed_share * self.mean_size * num_running / self.prefill_speed)

    def on_return(self, recomputed_share: float) -> None:
        """Note that a request is admitted that was paused, and what share of its KV it computes again."""
        self.recomputed_share += (recomputed_share - self.recomputed_share) * _RELAXING

    def tokens_left(self, requests: Sequence[LlmRequest]) -> list[int]:
        """Return how many tokens each of `requests` will still emit, as far as can be foreseen; at least 1."""
        predict, caution, lefts = self.lengths.predict, self.caution, []
        for request in requests:
            generated, before, most = request.num_generated_tokens, request.num_tokens_before, request.max_new_tokens
            length = predict(request.request_id, before + generated, before + most if request.has_token_limit else None)
            if caution > 1.0:
                length = int(caution * length)
            # No calls of min and max: this is asked for every request that runs, whenever one waits.
            left = (length - before if length - before < most else most) - generated
            lefts.append(left if left > 1 else 1)
        return lefts


def _limit(request: LlmRequest) -> int | None:
    """Return how long the whole answer of `request` may be, or None if its client said nothing."""
    return request.num_tokens_before + request.max_new_tokens if request.has_token_limit else None
