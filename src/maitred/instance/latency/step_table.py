"""StepTable: measured step times, which the latency model `table` looks up.

Curve, Grid    measurements along one axis or several: linear between their points, constant before the first, and straight
               on after the last (a grid: within bounds)
Skew           the cost of unequal lengths: attention over sequences of unequal contexts takes longer than over as many of
               their mean,

                   t(mean) + α · (t(longest) - t(mean))

               with α by (sequences, (mean - shortest) / (longest - shortest), longest), in buckets, as LLMServingSim's
               profiler fits it
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf, isfinite, prod
from typing import TypeAlias

import msgspec

from maitred.instance.latency.interpolation import Axis, interpolate

_BEYOND_ANY_TIME = 1e12

Curve: TypeAlias = tuple[tuple[float, float], ...]
"""Points (tokens or sequences, µs), in increasing order."""

ZERO_CURVE: Curve = ((0.0, 0.0),)


def check_increasing(points: Sequence[float], what: str) -> None:
    """Raise ValueError unless `points` increase. `what` names what they are points of."""
    if not points or points[0] < 0 or any(b <= a for a, b in pairwise(points)):
        raise ValueError(f"{what} must have points in increasing order, from 0 on")


def check_times(times: Sequence[float]) -> None:
    """Raise ValueError unless all times are at least 0."""
    if not all(isfinite(us) and us >= 0 for us in times):
        raise ValueError("every time must be a number of at least 0 (µs)")


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times (µs) at every combination of the points of some axes; the last axis varies fastest. Raises ValueError."""

    axes: tuple[Axis, ...]
    us: tuple[float, ...]
    bounded: bool = False
    """Whether values beyond the last points are bounded (`value_at`): those of a grid that was fitted to whole steps are."""

    def __post_init__(self) -> None:
        for axis in self.axes:
            check_increasing(axis, "an axis")
        if len(self.us) != prod(len(axis) for axis in self.axes):
            raise ValueError(f"{' by '.join(str(len(axis)) for axis in self.axes)} points have {len(self.us)} values")
        if not all(map(isfinite, self.us)):
            raise ValueError("every value must be a number (µs)")

    def value_at(self, *point: float) -> float:
        """Return the µs at a point, which has one number for each axis.

        Beyond the last points of some axes the value of a bounded grid is at least that at the edge, and at most in proportion
        to that: the slope there may be that of a few noisy measurements.
        """
        axes = self.axes
        value = interpolate(axes, self.us, point)
        if not self.bounded:
            return value
        beyond = 1.0
        for axis, x in zip(axes, point, strict=True):
            if x > axis[-1] > 0 and len(axis) > 1:
                beyond *= x / axis[-1]
        if beyond == 1.0:
            return value
        edge = interpolate(axes, self.us, [min(x, axis[-1]) for axis, x in zip(axes, point, strict=True)])
        return min(max(value, edge), edge * beyond)


def curve_value(curve: Curve, x: float) -> float:
    """Return the µs at `x`."""
    # A point at `x` itself counts as one before `x`, whatever its time. The last two points also serve what is beyond them.
    index = min(bisect_right(curve, (x, _BEYOND_ANY_TIME)), len(curve) - 1) - 1
    if index < 0 or x <= curve[0][0]:
        return curve[0][1]
    (start, time), (end, later) = curve[index], curve[index + 1]
    return time + (later - time) * (x - start) / (end - start)


Alphas: TypeAlias = tuple[tuple[float, float], ...]
"""Pairs of the largest context of the longest sequence, and the α up to there. In order; the last has no bound (inf)."""


class Skew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The α of every bucket, the last axis varying fastest; 0 where nothing was measured. An axis holds the upper bounds of its
    buckets, of which the last one also takes what is above. Raises ValueError."""

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

    def alphas_of(self, sequences: int, rate: float) -> Alphas:
        """Return the α of batches with a mean context at `rate` of the way from the shortest to the longest."""
        start = (_bucket(self.sequences, sequences) * len(self.rates) + _bucket(self.rates, rate)) * len(self.longest)
        return tuple(zip((*self.longest[:-1], inf), self.alphas[start : start + len(self.longest)], strict=True))


def _bucket(bounds: Axis, x: float) -> int:
    return min(bisect_left(bounds, x), len(bounds) - 1)


class StepTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """The times of the parts of a step: see `table`. Raises ValueError for tables that cannot be."""

    tokens: Curve = ZERO_CURVE
    """Time by the tokens of one rank."""
    sequences: Curve = ZERO_CURVE
    """Time by the sequences of one rank."""
    all_tokens: Curve = ZERO_CURVE
    """Time by the tokens of all ranks."""
    decode: Grid = Grid(((0.0,), (0.0,)), (0.0,))
    """Time of attention without prefill, by sequences and context per sequence."""
    mixed: Grid = Grid(((0.0,), (0.0,), (0.0,), (0.0,)), (0.0,))
    """Time of attention with prefill, by tokens of prefill, tokens before them, sequences that decode, and context per sequence
    of these."""
    data_parallel_size: int = 1
    """Ranks among which the sequences of an instance are spread."""
    skew: Skew | None = None
    """Cost of unequal contexts in `decode`, or None if they cost nothing."""
    source: str = ""
    """Source of the measurements."""

    @property
    def measured_up_to(self) -> tuple[float, float]:
        """The most sequences that decode and the most prompt tokens of a step in its grids."""
        sequences = [
            axis[-1] for grid, axis in ((self.decode, self.decode.axes[0]), (self.mixed, self.mixed.axes[2])) if grid.bounded
        ]
        return max(sequences, default=0.0), self.mixed.axes[0][-1] if self.mixed.bounded else 0.0

    def __post_init__(self) -> None:
        for curve in (self.tokens, self.sequences, self.all_tokens):
            check_increasing([x for x, _ in curve], "a curve")
            check_times([us for _, us in curve])
        check_times((*self.decode.us, *self.mixed.us))
        if len(self.decode.axes) != 2 or len(self.mixed.axes) != 4:
            raise ValueError(f"decode has 2 axes and mixed 4, not {len(self.decode.axes)} and {len(self.mixed.axes)}")
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be at least 1, not {self.data_parallel_size}")
