"""Batches that also say how far apart their contexts lie, for latency models to which that matters.

It takes a look at every sequence that decodes, once for each run of steps; so only those models pay for it that ask
(`instance.latency.BySpread`). What follows is exact, and the same at every step of a run: differences of whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul

from msgspec.structs import replace

from maitred.batching.blis import BlisBatch
from maitred.batching.continuous import ContinuousBatch, Step
from maitred.contracts import BatchShape, Spread


def spread_of(contexts: Sequence[int]) -> Spread:
    """Of at least one sequence. Adding a number to all `contexts` changes no bit of it."""
    count, total = len(contexts), sum(contexts)
    squares = count * sum(map(mul, contexts, contexts)) - total * total
    return Spread((count * max(contexts) - total) / count, (total - count * min(contexts)) / count, sqrt(squares) / count)


class SpreadBatch(ContinuousBatch):
    """`ContinuousBatch`, with `BatchShape.spread`."""

    __slots__ = ()

    def shape(self, step: Step) -> BatchShape:
        shape = super().shape(step)
        return replace(shape, spread=spread_of(self._contexts(step))) if shape.decodes > 1 else shape

    def _contexts(self, step: Step) -> list[int]:
        """Those of the sequences that decode in `step`, in no order."""
        ahead = self.number - 1
        contexts = [seq.request.prompt_tokens - seq.origin + ahead for seq in self.sequences.values() if seq.decoding]
        if self.resuming:
            contexts += [chunk.start for chunk in step.chunks if chunk.start == chunk.seq.carried > 0]
        return contexts


class SpreadBlisBatch(SpreadBatch, BlisBatch):
    """`BlisBatch`, with `BatchShape.spread`."""

    __slots__ = ()

    def _contexts(self, step: Step) -> list[int]:
        return [self._held(seq) for seq in self.sequences.values() if seq.decoding and seq not in self._stalled]
