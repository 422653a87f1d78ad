"""PrefillRequest: a request as SGLang's scheduler sees it, running or waiting."""

from __future__ import annotations


class PrefillRequest:
    """A request, running or waiting. Lengths are tokens."""

    cached_tokens: int = 0
    """Leading tokens whose KV is there: what the last look at the cache found, or what chunks have computed."""
    host_tokens: int = 0
    """Tokens after these whose KV is loaded from the memory of the host if it is taken: memory that it needs, and no work."""
    fill_tokens: int = 0
    """Tokens that prefill must find or compute, prompt and output; 0 before the request is first tried."""
    extend_tokens: int = 0
    """Tokens of it that the prefill batch computes."""

    def __init__(
        self,
        prompt_tokens: int,
        max_new_tokens: int,
        output_tokens: int = 0,
        urgency: float = 0,
        queued_at: float = 0,
        *,
        ignores_eos: bool = False,
    ) -> None:
        """`output_tokens` have been generated of at most `max_new_tokens`. A larger `urgency` is more urgent. `queued_at` is
        when it entered the queue, the last time, in any unit. `ignores_eos`: the answer does not end by itself."""
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.output_tokens = output_tokens
        self.urgency = urgency
        self.queued_at = queued_at
        self.ignores_eos = ignores_eos

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.prompt_tokens + self.output_tokens

    @property
    def uncached_tokens(self) -> int:
        """Tokens that prefill must compute."""
        return self.fill_tokens - self.cached_tokens
