"""How the prompts in one step share its tokens under `maitred`: the shortest rest first, and a share for the first in line.

Serving the shortest rest first has the least mean time to the first token, and a prompt of 100 tokens never waits for one of
600,000. By itself it would starve the long one. So the most urgent prompt that came first keeps `first_share` of the tokens,
whatever comes after it: that is the largest chunk that shorter prompts can take from it, and the bound on its wait. What the
others leave is its own, too. More urgent prompts come before all others.

Example: 2,048 tokens; a prompt with 500,000 tokens to go came first, one of 100 after it, and one of 3,000 last. With a share
of one half they get 1,024, 100 and 924. Without the last one the first gets 1,948.

A chunk that does not end its prompt is a multiple of the unit, unless the tokens do not reach for one.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.batching.trtllm.llm_request import LlmRequest


class PromptRest:
    """A prompt with tokens to compute."""

    __slots__ = ("chunk", "place", "request", "rest")

    def __init__(self, request: LlmRequest, place: int, rest: int) -> None:
        """`place` is its index in the order in which requests came."""
        self.request = request
        self.place = place
        self.rest = rest
        """Tokens that it has to compute: without those that are found in the cache."""
        self.chunk = 0
        """Of these, the tokens of this step."""


class PromptShares:
    """The rule, with its limits."""

    def __init__(self, first_share: float, unit: int, longest: int, *, whole_only: bool) -> None:
        """`longest` is the number of tokens that a chunk may have. With `whole_only`, prompts are computed whole or not at
        all."""
        self.first_share = first_share
        self.unit = unit
        self.longest = longest
        self.whole_only = whole_only

    def assign(self, prompts: Sequence[PromptRest], tokens: int) -> None:
        """Set the chunks of `prompts`, of `tokens` tokens together at most."""
        order = sorted(prompts, key=lambda prompt: (-prompt.request.priority, prompt.rest, prompt.place))
        first = min(prompts, key=lambda prompt: (-prompt.request.priority, prompt.place), default=None)
        kept = 0 if first is None else min(first.rest, self.longest, int(tokens * self.first_share))
        for prompt in order:
            if prompt is first:
                kept = 0
            prompt.chunk = self._chunk(prompt.rest, tokens - kept)
            tokens -= prompt.chunk

    def _chunk(self, rest: int, tokens: int) -> int:
        chunk = max(0, min(rest, tokens, self.longest))
        if chunk == rest:
            return chunk
        if self.whole_only:
            return 0
        return chunk - chunk % self.unit or chunk
