"""How long will an answer be, and why does it end there?

An engine finds out when the model says "end of sequence" or the limit is reached; an emulated one draws the length in
advance, from a seeded stream: the n-th prompt of a run has the same length in every run. With `ignore_eos` the model never
ends by itself, so an answer has exactly as many tokens as it may.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

import msgspec

from maitred.workload.lengths import parse_lengths


class FinishReason(StrEnum):
    """Why a request ended, in vLLM's words; clients see the first two."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class PlannedFinish(msgspec.Struct, frozen=True):
    """An answer ends after `tokens` (at least 1), for this reason."""

    output_tokens: int
    reason: FinishReason


class FinishSampler:
    """Draws endings."""

    def __init__(self, lengths: str | int, seed: int) -> None:
        """Raises ConfigError unless `lengths` is a length distribution."""
        self._lengths = parse_lengths(lengths)
        self._uniform = Random(f"{seed}/answers").random

    def draw(self, *, max_tokens: int, min_tokens: int = 0) -> PlannedFinish:
        """For a model that ends by itself after at least `least` tokens, and is cut after `most` (at least 1)."""
        drawn = max(min_tokens, self._lengths.draw(self._uniform))
        return PlannedFinish(drawn, FinishReason.STOP) if drawn <= max_tokens else self.exactly(max_tokens)

    @staticmethod
    def exactly(max_tokens: int) -> PlannedFinish:
        """For a model that never ends by itself."""
        return PlannedFinish(max_tokens, FinishReason.LENGTH)
