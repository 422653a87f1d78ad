"""Axes of tables: as many points as linear interpolation between them needs, and no more.

An interval is halved as long as the function at one of its quarters is farther from the straight line than allowed. So points
lie close where measured kernels jump (at the sizes of tiles, for example), and far apart where times grow evenly. What is noise
does not make a table without end: an interval is never shorter than a sixteenth of where it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Final, TypeAlias

_MOST_PER_START: Final = 16
Samples: TypeAlias = Sequence[tuple[float, float]]
"""Values of some functions at one point, each with how far an interpolated value may be from it."""


def refine(points: Sequence[int], samples_at: Callable[[int], Samples]) -> tuple[float, ...]:
    """Return `points`, which increase, with those between them that interpolation needs."""
    at = cache(samples_at)

    def is_straight(start: int, end: int) -> bool:
        for x in {start + (end - start) * quarter // 4 for quarter in (1, 2, 3)} - {start}:
            share = (x - start) / (end - start)
            for (first, _), (last, _), (value, allowed) in zip(at(start), at(end), at(x), strict=True):
                if abs(first + (last - first) * share - value) > allowed:
                    return False
        return True

    def between(start: int, end: int) -> list[int]:
        if end - start < max(2, start // _MOST_PER_START) or is_straight(start, end):
            return []
        middle = (start + end) // 2
        return [*between(start, middle), middle, *between(middle, end)]

    found = [points[0]]
    for start, end in pairwise(points):
        found += [*between(start, end), end]
    return tuple(map(float, found))
