"""What unequal lengths cost: attention over sequences of unequal contexts takes longer than over as many of their mean.

    t(mean) + α · (t(longest) - t(mean))

with α by (sequences, (mean - shortest) / (longest - shortest), longest), in buckets, as LLMServingSim's profiler fits it.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import inf, prod
from typing import TypeAlias

import msgspec

from maitred.instance.latency.grids import Axis

Alphas: TypeAlias = tuple[tuple[float, float], ...]
"""(up to which context of the longest, α), in order; the last has no bound (inf)."""


class Skew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """α of every bucket, the last axis varying fastest; 0 where nothing was measured. An axis is the upper bounds of its
    buckets, of which the last one also takes what is beyond. Raises ValueError."""

    sequences: Axis
    rates: Axis
    longest: Axis
    alphas: tuple[float, ...]

    def __post_init__(self) -> None:
        axes = (self.sequences, self.rates, self.longest)
        if not all(axes) or any(b <= a for axis in axes for a, b in pairwise(axis)):
            raise ValueError("the bounds of a skew must be in increasing order")
        if len(self.alphas) != prod(map(len, axes)):
            raise ValueError(f"{' by '.join(str(len(axis)) for axis in axes)} buckets have {len(self.alphas)} values")
        if not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise ValueError("every alpha must be a number from 0 to 1")

    def row(self, sequences: int, rate: float) -> Alphas:
        """Of batches of so many sequences, whose mean is at `rate` of the way from the shortest to the longest."""
        start = (_bucket(self.sequences, sequences) * len(self.rates) + _bucket(self.rates, rate)) * len(self.longest)
        return tuple(zip((*self.longest[:-1], inf), self.alphas[start : start + len(self.longest)], strict=True))


def _bucket(bounds: Axis, x: float) -> int:
    return min(bisect_left(bounds, x), len(bounds) - 1)
