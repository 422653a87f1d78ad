"""BatchWaiting: prompts are held back until a step computes enough tokens, or has waited for some steps.

It applies without attention data parallelism, to steps that have both prompts and requests that generate: the others lose
little by waiting, since tokens come out meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class PromptTokens(msgspec.Struct, frozen=True):
    """The prompt of one scheduled request, in tokens."""

    tokens: int
    reusable: int = 0
    """Tokens of the prompt that are expected in the cache."""
    first_chunk: bool = True

    @property
    def computed(self) -> int:
        """Tokens that the step computes, at least 1."""
        return max(1, self.tokens - (self.reusable if self.first_chunk else 0))


class BatchWaiting:
    """Whether the prompts of a step run, by the tokens of the step and the steps waited so far."""

    def __init__(
        self, max_num_tokens: int, max_tokens_ratio: float, timeout_iters: int, *, require_generation: bool = True
    ) -> None:
        """`require_generation`: steps in which no request generates never wait."""
        self._enough = max_tokens_ratio * max_num_tokens
        self._timeout_iters = timeout_iters
        self._require_generation = require_generation
        self._waited = 0

    def runs(self, prompts: Sequence[PromptTokens], generation_tokens: Sequence[int]) -> bool:
        """Return whether `prompts` run beside the requests that generate, each of which takes some tokens."""
        if not prompts or (self._require_generation and not generation_tokens):
            return True
        tokens = sum(prompt.computed for prompt in prompts) + sum(generation_tokens)
        if self._waited >= self._timeout_iters or tokens >= self._enough:
            self._waited = 0
            return True
        self._waited += 1
        return False
