"""Curves and grids of measurements: linear between their points, constant before the first and straight on after the last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, prod
from typing import TypeAlias

import msgspec

_FIRST = 1e12

Curve: TypeAlias = tuple[tuple[float, float], ...]
"""Points (tokens or sequences, µs), in increasing order."""
Axis: TypeAlias = tuple[float, ...]
"""In increasing order."""

NOTHING: Curve = ((0.0, 0.0),)


def check_increasing(points: Sequence[float], what: str) -> None:
    """Raises ValueError, with the name of what they are points of."""
    if not points or points[0] < 0 or any(b <= a for a, b in pairwise(points)):
        raise ValueError(f"{what} must have points in increasing order, from 0 on")


def check_times(times: Sequence[float]) -> None:
    """Raises ValueError."""
    if not all(isfinite(us) and us >= 0 for us in times):
        raise ValueError("every time must be a number of at least 0 (µs)")


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """µs at every combination of the points of some axes; the last axis varies fastest. Raises ValueError."""

    axes: tuple[Axis, ...]
    us: tuple[float, ...]

    def __post_init__(self) -> None:
        for axis in self.axes:
            check_increasing(axis, "an axis")
        if len(self.us) != prod(len(axis) for axis in self.axes):
            raise ValueError(f"{' by '.join(str(len(axis)) for axis in self.axes)} points have {len(self.us)} values")
        check_times(self.us)

    def at(self, *point: float) -> float:
        """µs at a point, one number for each axis."""
        terms, stride = [(0, 1.0)], len(self.us)
        for axis, x in zip(self.axes, point, strict=True):
            stride //= len(axis)
            index, share = place_on(axis, x)
            beyond = [(offset + (index + 1) * stride, weight * share) for offset, weight in terms] if share else []
            terms = [(offset + index * stride, weight * (1 - share)) for offset, weight in terms] + beyond
        return sum([self.us[offset] * weight for offset, weight in terms])


def place_on(axis: Sequence[float], x: float) -> tuple[int, float]:
    """Between which two points, and how far on the way to the second one; beyond 1 after the last."""
    if x <= axis[0] or len(axis) == 1:
        return 0, 0.0
    index = min(bisect_right(axis, x), len(axis) - 1) - 1
    return index, (x - axis[index]) / (axis[index + 1] - axis[index])


def on_curve(curve: Curve, x: float) -> float:
    """µs at `x`: see the module."""
    index = min(bisect_right(curve, (x, _FIRST)), len(curve) - 1) - 1
    if index < 0 or x <= curve[0][0]:
        return curve[0][1]
    (start, time), (end, later) = curve[index], curve[index + 1]
    return time + (later - time) * (x - start) / (end - start)
