"""Axes of tables: as many points as linear interpolation between them needs, and no more.

An interval is halved as long as the function at one of its quarters is farther from the straight line than allowed. So points
lie close where measured kernels jump (at the sizes of tiles, for example), and far apart where times grow evenly. Where
an axis is one of several, noise would make a table without end, so its intervals have a shortest length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TypeAlias

Samples: TypeAlias = Sequence[tuple[float, float]]
"""Values of some functions at one point, each with how far an interpolated value may be from it."""


def refine(points: Sequence[int], samples_at: Callable[[int], Samples], shortest: float = 0.0) -> tuple[float, ...]:
    """Return `points`, which increase, with those between them that interpolation needs. `shortest` is the length of an
    interval that is not halved any more, as a share of where it starts."""
    at = cache(samples_at)

    def is_straight(start: int, end: int) -> bool:
        for x in {start + (end - start) * quarter // 4 for quarter in (1, 2, 3)} - {start}:
            share = (x - start) / (end - start)
            for (first, _), (last, _), (value, allowed) in zip(at(start), at(end), at(x), strict=True):
                if abs(first + (last - first) * share - value) > allowed:
                    return False
        return True

    def between(start: int, end: int) -> list[int]:
        if end - start < max(2.0, start * shortest) or is_straight(start, end):
            return []
        middle = (start + end) // 2
        return [*between(start, middle), middle, *between(middle, end)]

    found = [points[0]]
    for start, end in pairwise(points):
        found += [*between(start, end), end]
    return tuple(map(float, found))
