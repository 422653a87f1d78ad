"""How far apart the contexts of a batch lie, for latency models to which that matters.

It takes a look at every sequence that decodes, once for each run of steps; so only those models pay for it that ask
(`instance.latency.BySpread`). What follows is exact, and the same at every step of a run: differences of whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul

from maitred.contracts import Spread


def spread_of(contexts: Sequence[int]) -> Spread:
    """Of at least one sequence. Adding a number to all `contexts` changes no bit of it."""
    count, total = len(contexts), sum(contexts)
    squares = count * sum(map(mul, contexts, contexts)) - total * total
    return Spread((count * max(contexts) - total) / count, (total - count * min(contexts)) / count, sqrt(squares) / count)
