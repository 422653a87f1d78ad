"""A histogram of durations. `observe` costs one bisection and two additions, so it can be called for every request.

It is converted to Prometheus' cumulative form only when it is exported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from maitred.core.units import Micros, from_seconds, to_seconds

DURATION_BOUNDS: Final = tuple(
    from_seconds(secs) for secs in (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
)
"""Upper bounds for durations, in µs."""
ERROR_BOUNDS: Final = tuple(
    from_seconds(secs) for secs in (-300, -60, -30, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 30, 60, 300)
)
"""Upper bounds for differences of two instants, in µs."""


class Histogram:
    """Counts of values (µs) by upper bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[Micros] = DURATION_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total: Micros = 0
        """The sum of all values."""

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts)

    def observe(self, value: Micros) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def merge(self, other: Histogram) -> None:
        """Add all values of `other`, which must have the same bounds."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total

    def prometheus_buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulative counts by upper bound (seconds, the last one `+Inf`), and the sum in seconds."""
        so_far, buckets = 0, []
        for bound, count in zip((*(f"{to_seconds(b):g}" for b in self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets, to_seconds(self.total)
