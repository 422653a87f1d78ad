"""PrefillAdder: how many waiting requests, and how many of their tokens, one prefill batch of SGLang takes.

Three budgets bound it, in tokens:

    rem_input    `max_prefill_tokens`; a soft one: the request that uses it up is still taken
    rem_chunk    `chunked_prefill_size`; a request that has more to compute is cut, and goes on in the next batch
    rem_total    memory that is free or can be evicted, less what the running requests are expected to generate
                 (`NewTokenRatio`) and the batch is to compute and generate; `rem_current` leaves out what is generated

A request is taken if its tokens to compute, its tokens yet to be generated (`clip_max_new_tokens` at most) and a page are less
than `rem_total`. Taking e tokens charges them in whole pages, a page more for rounding, and if they complete the prompt what
may be generated after it. With a mixed batch, a token for each running request is charged beforehand.

There is one chunked request at a time. It comes before the queue and always goes on, even where no memory is left by this
count. The verdict on a request says whether the *next* one may be tried: the last that is taken gets `OTHER` or `NO_TOKEN`.

Example: pages of 1 token, 1,000 of them free, a chunk size of 512, nothing runs. A request with a prompt of 300 and at most 100
new tokens is taken: rem_total is 1000 - 300 - 1 - 100 = 599 and rem_chunk 212. The next one has 400 and 50: 451 tokens are less
than 599, so it is cut to 212, and becomes the chunked request; rem_total is 386 and rem_chunk 0, so the verdict is `OTHER`.

Source: sglang 0.5.23, `schedule_policy.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from operator import itemgetter

from maitred.compat.sglang.prefill_request import PrefillRequest
from maitred.compat.sglang.rules import PrefillLimits


class AddResult(Enum):
    """Whether the next request may be tried."""

    CONTINUE = "CONTINUE"
    NO_TOKEN = "NO_TOKEN"  # noqa: S105 - a verdict, and no secret
    """No: there is no memory."""
    OTHER = "OTHER"
    """No: for any other reason."""


class PrefillMemory(ABC):
    """The KV memory as the adder counts it, in tokens."""

    @abstractmethod
    def available_tokens(self) -> int:
        """Return the tokens that are free or that could be evicted."""

    @abstractmethod
    def lock(self, request: PrefillRequest) -> None:
        """Keep what is cached of `request` from being evicted."""

    @abstractmethod
    def unlock(self, request: PrefillRequest) -> None:
        """Undo `lock`: the request is not taken."""

    def allows_prefill(self) -> bool:
        """Return whether prefill is not delayed in this pass. Asked before each request that could be taken."""
        return True


class PrefillAdder:
    """The prefill batch of one pass."""

    def __init__(
        self,
        limits: PrefillLimits,
        memory: PrefillMemory,
        running: Sequence[PrefillRequest],
        new_token_ratio: float,
        num_mixed: int = 0,
        expected_tokens: float | None = None,
        *,
        has_cache: bool = True,
    ) -> None:
        """`running` are the requests that decode, `num_mixed` how many of them ride in this batch. `expected_tokens`: what they
        are expected to generate yet, None if that is not known. `has_cache`: whether there is a prefix cache."""
        self._limits = limits
        self._page = limits.page_size
        self._memory = memory
        self._running = running
        self._ratio = new_token_ratio
        self._has_cache = has_cache
        self._forecast: FreeTokenForecast | None = None
        self.chunk_cap: int | None = None
        """At most this many tokens of the chunked request are computed; None: as many as fit."""
        self.may_chunk = True
        """Whether a request from the queue may be cut."""
        self.rem_input = limits.max_prefill_tokens - num_mixed
        size = limits.chunked_prefill_size
        self.rem_chunk: int | None = None if size is None else size - num_mixed
        self.total_offset: float = num_mixed
        self.current_offset = num_mixed
        if expected_tokens is None:
            expected_tokens = sum([self.expected_tokens(request) for request in running])
        self.total_offset += expected_tokens
        self.admitted: list[PrefillRequest] = []
        """The requests of the batch, in the order in which they were taken."""
        self.chunked: PrefillRequest | None = None
        """The request that goes on in the next batch."""

    @property
    def rem_total(self) -> float:
        """Tokens that are neither used nor expected to be."""
        return self._memory.available_tokens() - self.total_offset

    @property
    def rem_current(self) -> int:
        """Tokens that are not used, where what is yet to be generated is not counted."""
        return self._memory.available_tokens() - self.current_offset

    def expected_tokens(self, request: PrefillRequest) -> float:
        """Return how many tokens `request`, which runs, is expected to generate yet."""
        most = min(request.max_new_tokens - request.output_tokens, self._limits.clip_max_new_tokens)
        return most * (1.0 if request.ignores_eos else self._ratio)

    def budget_state(self) -> AddResult:
        """Return whether another request may be tried."""
        if self.rem_total <= 0 or self.rem_current <= 0:
            return AddResult.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return AddResult.OTHER
        return AddResult.CONTINUE

    def add_chunked(self, request: PrefillRequest) -> bool:
        """Take as much as may be of the chunked request. Return whether it goes on in the next batch."""
        self._memory.allows_prefill()  # it goes on in any case, but that there is work is said
        remaining = limit = request.uncached_tokens
        if self.rem_chunk is not None:
            limit = min(self.rem_chunk, int(self.rem_total))
            # No memory is left by this count. It goes on all the same, because its KV would be held for nothing.
            if limit <= 0:
                limit = self.rem_chunk
            if self.chunk_cap is not None:
                limit = min(limit, self.chunk_cap)
        truncated = remaining > limit
        self._take(request, min(remaining, limit), 0 if truncated else self._reserve(request))
        if truncated:
            self.chunked = request
        return truncated

    def add(self, request: PrefillRequest) -> AddResult:
        """Take `request`, which is the head of the queue, whole or cut, if the budgets allow it."""
        most = self._limits.prefill_max_requests
        if most is not None and len(self.admitted) >= most:
            return AddResult.OTHER
        if request.ignores_eos and not self._has_cache:
            return self._add_by_forecast(request)
        self._memory.lock(request)
        verdict = self._add_locked(request)
        if verdict is None:
            return self.budget_state()
        self._memory.unlock(request)
        return verdict

    def preempt(self, victim: PrefillRequest) -> None:
        """Note that `victim`, which runs, gives way: it will generate nothing."""
        self._running = [request for request in self._running if request is not victim]
        self.total_offset -= self.expected_tokens(victim)

    def _add_locked(self, request: PrefillRequest) -> AddResult | None:
        """Take `request`. Return None, or why it is not taken."""
        tokens = request.uncached_tokens
        to_generate = min(max(request.max_new_tokens - request.output_tokens, 0), self._limits.clip_max_new_tokens)
        if tokens + to_generate + self._page >= self.rem_total:
            return AddResult.NO_TOKEN
        tokens -= request.host_tokens
        # The budget of prompts is a soft one without chunks: the first request is taken, however long it is.
        if self.rem_chunk is None and self.admitted and self._whole_pages(tokens) >= self.rem_input:
            return AddResult.OTHER
        if not self._memory.allows_prefill():
            return AddResult.OTHER
        if self.rem_chunk is None or self._whole_pages(tokens) <= self.rem_chunk:
            self._take(request, tokens, self._reserve(request))
            return None
        piece = self._cut(request.cached_tokens + request.host_tokens, self.rem_chunk) if self.may_chunk else 0
        if piece <= 0:
            return AddResult.OTHER
        self._take(request, piece, 0)
        self.chunked = request
        return None

    def _add_by_forecast(self, request: PrefillRequest) -> AddResult:
        """Take `request`, which does not end by itself, without a prefix cache: when each answer ends is known then."""
        tokens = request.uncached_tokens
        paged = self._whole_pages(tokens) + self._page
        if paged > min(self.rem_current, self.rem_total):
            return AddResult.NO_TOKEN
        # Made for the first request of a pass that asks for it, because it goes through all running requests.
        if self._forecast is None:
            self._forecast = FreeTokenForecast([request, *self._running, *self.admitted], self._ratio)
        else:
            self._forecast.insert(request)
        if not self._forecast.lasts(self.rem_current - paged):
            return AddResult.NO_TOKEN
        if not self._memory.allows_prefill():
            return AddResult.OTHER
        if self.rem_chunk is None or tokens <= self.rem_chunk:
            self._take(request, tokens, self._reserve(request))
        elif self.rem_chunk <= 0:
            return AddResult.OTHER
        else:
            self._take(request, self.rem_chunk, 0)
            self.chunked = request
        return self.budget_state()

    def _cut(self, cached: int, room: int) -> int:
        """Return how many tokens after the first `cached` ones a chunk within `room` tokens has: it ends with a page."""
        align = self._limits.truncation_align_size or self._page
        end = cached + room // align * align
        return end // self._page * self._page - cached

    def _take(self, request: PrefillRequest, tokens: int, reserve: int) -> None:
        pages, loaded = self._whole_pages(tokens), request.host_tokens
        self.total_offset += loaded + pages + self._page + reserve
        self.current_offset += loaded + pages + self._page
        self.rem_input -= pages
        if self.rem_chunk is not None:
            self.rem_chunk -= pages
        request.extend_tokens = tokens
        self.admitted.append(request)

    def _reserve(self, request: PrefillRequest) -> int:
        """Return the tokens that are charged for the answer of `request`: all that it may have, also where it is continued."""
        return min(request.max_new_tokens, self._limits.clip_max_new_tokens)

    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page


class FreeTokenForecast:
    """Whether memory lasts until requests that do not end by themselves have ended.

    Without a prefix cache, and with clients that ignore the end-of-sequence token (benchmarks do), it is known when each answer
    ends and what it frees. The requests stand in the order of the tokens that are left to them; while n of them are there, each
    step takes n tokens, and each that ends gives back its own:

        for each (left, occupied), n of them from here on:  fail if  free + freed - left * n <= n;  freed += occupied

    Example: 100 tokens are free; one request has 10 tokens left and occupies 30, another has 40 left and occupies 20. Until the
    first ends, 2 * 10 tokens are taken and 80 stay. Then 30 come back, and the other could take 40 of 130. It lasts.

    SGLang's list is not always in order: a request that has more left than all others is inserted *before* the last one. And a
    request that was refused stays in the list for the rest of the pass.
    """

    def __init__(self, requests: Sequence[PrefillRequest], new_token_ratio: float) -> None:
        """Requests that do end by themselves count with `new_token_ratio` of their limit."""
        self._ratio = new_token_ratio
        states = [(self._tokens_left(request), request.num_tokens) for request in requests]
        self._states = sorted([state for state in states if state[0] > 0], key=itemgetter(0))

    def insert(self, request: PrefillRequest) -> None:
        """Add a request, where SGLang does."""
        left = self._tokens_left(request)
        if left <= 0:
            return
        states = self._states
        later = [index for index, state in enumerate(states) if state[0] >= left]
        states.insert(later[0] if later else max(len(states) - 1, 0), (left, request.num_tokens))

    def lasts(self, free: int) -> bool:
        """Return whether `free` tokens are enough."""
        freed = 0
        for index, (left, occupied) in enumerate(self._states):
            count = len(self._states) - index
            if free + freed - left * count <= count:
                return False
            freed += occupied
        return True

    def _tokens_left(self, request: PrefillRequest) -> float:
        return request.max_new_tokens * (1.0 if request.ignores_eos else self._ratio) - request.output_tokens
