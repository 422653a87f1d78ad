"""Finish reasons: how long an answer is, and why it ends.

A real engine learns this when the model emits "end of sequence" or the limit is reached. An emulated engine draws the length in
advance from a seeded stream, so the n-th prompt has the same answer length in every run. With `ignore_eos` the model never ends
by itself, so an answer has exactly as many tokens as its limit.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

import msgspec

from maitred.workload.lengths import parse_lengths


class FinishReason(StrEnum):
    """The reason why a request ended, in vLLM's words. Clients see the first two."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class PlannedFinish(msgspec.Struct, frozen=True):
    """The length of an answer, at least 1, and the reason why it ends there."""

    output_tokens: int
    reason: FinishReason


class FinishSampler:
    """Draws the lengths of answers."""

    def __init__(self, lengths: str | int, seed: int) -> None:
        """Raise ConfigError unless `lengths` is a length distribution."""
        self._lengths = parse_lengths(lengths)
        self._uniform = Random(f"{seed}/answers").random

    def draw(self, *, max_tokens: int, min_tokens: int = 0) -> PlannedFinish:
        """Return the finish of a model that ends by itself after at least `min_tokens`, and is cut after `max_tokens` (at least
        1)."""
        drawn = max(min_tokens, self._lengths.draw(self._uniform))
        return PlannedFinish(drawn, FinishReason.STOP) if drawn <= max_tokens else self.exactly(max_tokens)

    @staticmethod
    def exactly(max_tokens: int) -> PlannedFinish:
        """Return the finish of a model that never ends by itself."""
        return PlannedFinish(max_tokens, FinishReason.LENGTH)
