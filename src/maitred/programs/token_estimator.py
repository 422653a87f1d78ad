"""The tokens of a request before its backend has counted them: characters of the body, divided by a learned ratio.

One ratio is learned for each model and tenant, since languages, templates and tools differ. It starts at 5 characters per
token; the first answer replaces it, each later one counts 0.2 (ThunderAgent's formula):

    ratio = 0.2 * characters / prompt_tokens + 0.8 * ratio

Each sample is limited to 1 to 16 characters per token. The flavour `thunderagent` has no limit.
"""

from __future__ import annotations

from typing import Final

FIRST_RATIO: Final = 5.0
"""Characters per token before the first answer has told (ThunderAgent's)."""
MIN_RATIO: Final = 1.0
MAX_RATIO: Final = 16.0
"""Bounds of a sample. XXX: texts in scripts that a tokenizer hardly knows have less than a character per token, and are taken
for smaller than they are. To be measured: the ratios of real tokenizers by language."""
MAX_REPORTED_TOKENS: Final = 2**40
"""More tokens than any context has; larger numbers in a usage are not believed."""
PROGRESS_TOKENS: Final = 20
"""Tokens of a streamed response (events, as a gateway sees them) after which its program is said to have grown by as many."""
_MAX_LEARNED: Final = 10_000
"""Most pairs of model and tenant with a ratio that is kept; beyond, the oldest is forgotten."""


class TokenEstimator:
    """Ratios by model and tenant."""

    def __init__(self, *, is_limited: bool = True) -> None:
        """`is_limited` says whether samples are limited."""
        self._is_limited = is_limited
        self._ratios: dict[tuple[str, str], float] = {}

    def ratio(self, model: str, tenant: str) -> float:
        """Return the characters per token."""
        return self._ratios.get((model, tenant), FIRST_RATIO)

    def estimate(self, characters: int, model: str, tenant: str) -> int:
        """Return the tokens of a body with this many characters."""
        return int(characters / self.ratio(model, tenant))

    def learn(self, characters: int, prompt_tokens: int, model: str, tenant: str) -> None:
        """Learn from an answer; without characters or tokens there is nothing to learn."""
        if characters <= 0 or prompt_tokens <= 0:
            return
        sample = characters / prompt_tokens
        # What no tokenizer does comes of images in the body, or of a wrong usage, and would spoil all later estimates.
        if self._is_limited:
            sample = min(max(sample, MIN_RATIO), MAX_RATIO)
        known = self._ratios.get((model, tenant))
        if known is None and len(self._ratios) >= _MAX_LEARNED:
            del self._ratios[next(iter(self._ratios))]
        self._ratios[model, tenant] = sample if known is None else 0.2 * sample + 0.8 * known

    def believable_total(self, reported: int, capacity: int | None) -> int | None:
        """Return the tokens that a backend of a capacity has reported of a request, as far as that is possible, or None if it
        is not."""
        if reported < 0 or (self._is_limited and reported > MAX_REPORTED_TOKENS):
            return None
        # No context is larger than the memory that held it; a backend that says so is not believed.
        return reported if not self._is_limited or capacity is None else min(reported, capacity)
