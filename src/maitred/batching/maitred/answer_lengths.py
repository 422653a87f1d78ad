"""AnswerLengths: how long answers become, learned from those that are complete.

Two predictors watch the same requests, and the better one is asked:

    by length     how many tokens answers have, whatever the client allows
    by limit      which share of what the client allows answers have

A client that always uses its limit (a benchmark) is foreseen exactly by the second one, and one that names a limit far above
what it needs by the first. Each keeps a histogram with four buckets to an octave, in which old answers fade: after `_FADING`
more they count 1/e.

**One prediction for each request, not one for all.** Each request has a *stratum*, a fixed place u in the distribution that is
drawn from its id, and its predicted length is the u-quantile of the answers that are at least as long as its own. Together the
running requests then look like a sample of the distribution, and the sum over them is what is to be expected.

    strata 1/16, 3/16 ... 15/16 of answers of 100 to 500 tokens, all alike: 125, 175 ... 475 tokens
    the same after 300 tokens: 312, 337 ... 487

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

_PER_OCTAVE: Final = 4
"""Buckets for each doubling of the length, each 19 % wider than the one before."""
_OCTAVES: Final = 30
"""Doublings that have buckets: more tokens than any answer has."""
_EDGES: Final[Sequence[int]] = sorted({round(2 ** (index / _PER_OCTAVE)) for index in range(_OCTAVES * _PER_OCTAVE)})
"""The least lengths of the buckets, in tokens."""
_STRATA: Final = 8
"""Places in the distribution: a power of two, so that some bits of a number choose one. XXX: 8 is a guess: fewer are a coarser
sample of the lengths, and each costs a row of predictions."""
_LAST_STRATUM: Final = _STRATA - 1
_FADING: Final = 1000
"""Answers after which one counts 1/e."""
_OFTEN_AT_FIRST: Final = 32
"""Predictions are made anew after each of that many answers, and later after every 1/32 more."""
_WHOLE_LIMIT: Final = 4096
"""Shares of a limit are counted in parts of this."""
_FIRST_GUESS: Final = (128, 256, 512, 1024)
"""Lengths that stand for answers until some are known, in tokens."""


class _Distribution:
    """Lengths, newer ones with more weight, and what follows from them for a request that has a certain length already."""

    def __init__(self, first_guess: Sequence[int]) -> None:
        self._weights = [0.0] * len(_EDGES)
        self._next_weight = 1.0
        for length in first_guess:
            self._add(length, 1 / len(first_guess))
        self._num_observed = 0
        self._next_rebuild = 1
        self.lengths: Sequence[Sequence[int]] = self._predictions()
        """By stratum and bucket of the length so far: the predicted length."""

    def observe(self, length: int) -> None:
        """Count `length`, which is at least 1."""
        self._next_weight *= 1 + 1 / _FADING
        self._add(length, self._next_weight)
        # Weights grow for ever, and a float would lose the older ones in the sum long before it overflows.
        if self._next_weight > 1e9:
            self._weights = [weight / self._next_weight for weight in self._weights]
            self._next_weight = 1.0
        self._num_observed += 1
        if self._num_observed >= self._next_rebuild:
            self._next_rebuild = self._num_observed + max(1, min(self._num_observed, _FADING) // _OFTEN_AT_FIRST)
            self.lengths = self._predictions()

    def _add(self, length: int, weight: float) -> None:
        self._weights[bucket_of(length)] += weight

    def _predictions(self) -> Sequence[Sequence[int]]:
        below = [0.0, *accumulate(self._weights)]
        return [self._quantiles((2 * stratum + 1) / (2 * _STRATA), below) for stratum in range(_STRATA)]

    def _quantiles(self, share: float, below: Sequence[float]) -> list[int]:
        """Return the `share` quantile of the lengths in each bucket or beyond it. `below` is the weight of the buckets before
        each, and then of all."""
        total, quantiles, end, last = below[-1], [], 0, len(_EDGES) - 1
        for bucket in range(len(_EDGES)):
            # Of an answer that has 500 tokens, only answers beyond 500 tell how long it becomes.
            wanted = below[bucket] + share * (total - below[bucket])
            end = max(end, bucket)
            while end < last and below[end + 1] < wanted:
                end += 1
            # Nothing but the rounding of sums may be left there.
            if total - below[bucket] <= 1e-9 * total:
                quantiles.append(2 * _EDGES[bucket])  # longer than all that are known: as long again
            else:
                within = min(1.0, (wanted - below[end]) / max(self._weights[end], 1e-300))
                width = (_EDGES[end + 1] if end < last else 2 * _EDGES[end]) - _EDGES[end]
                quantiles.append(_EDGES[end] + int(max(0.0, within) * width))
        # While a request grows, its predicted length must never fall: by that `MaitredScheduler` knows for how many steps its
        # answer stays the same.
        return list(accumulate(quantiles, max))


class AnswerLengths:
    """The lengths of answers so far, and predictions. All counts are tokens."""

    def __init__(self) -> None:
        self._by_length = _Distribution(_FIRST_GUESS)
        self._by_limit = _Distribution((_WHOLE_LIMIT,))
        self._errors = [0.0, 0.0]
        """How much the two predictors were wrong, old errors faded."""

    def observe(self, length: int, limit: int | None) -> None:
        """Learn from a complete answer. `limit` is what its client allowed, or None if it said nothing."""
        middle = _STRATA // 2
        if limit is not None:
            guesses = self._by_length.lengths[middle][0], self._by_limit.lengths[middle][0] * limit // _WHOLE_LIMIT
            fading = 1 - 1 / _FADING
            self._errors = [
                error * fading + abs(min(guess, limit) - length) for error, guess in zip(self._errors, guesses, strict=True)
            ]
            self._by_limit.observe(max(1, -(-length * _WHOLE_LIMIT // limit)))
        self._by_length.observe(length)

    def predict(self, request_id: int, so_far: int, limit: int | None) -> int:
        """Return how long the answer of a request becomes that has `so_far` tokens: more than that."""
        # Were all given the median, half of them would outgrow it; with a high quantile the memory would stand half empty.
        stratum = (request_id * 0x9E3779B1 >> 16) & _LAST_STRATUM  # neighbours have different ones, each as often as any other
        if limit is None or self._errors[1] > self._errors[0]:
            bucket = _BUCKETS[so_far] if so_far < _NUM_SHORT else bucket_of(so_far)
            length = self._by_length.lengths[stratum][bucket]
        else:
            share = self._by_limit.lengths[stratum][_BUCKETS[so_far * _WHOLE_LIMIT // limit]]
            length = -(-share * limit // _WHOLE_LIMIT)
        return length if length > so_far else so_far + 1


def bucket_of(length: int) -> int:
    """Return the index of the bucket of `length`; 0 for lengths below 1."""
    return max(0, bisect_right(_EDGES, length) - 1)


_NUM_SHORT: Final = 2 * _WHOLE_LIMIT
_BUCKETS: Final[Sequence[int]] = [bucket_of(length) for length in range(_NUM_SHORT)]
"""The buckets of short lengths, which are asked for most often."""
