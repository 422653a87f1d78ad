"""Distributions, kept as counts of values by bucket: never the values themselves, so memory does not grow with their number.

`Histogram` has a few fixed bounds, for live metrics. `observe` costs one bisection and two additions, so it can be called for
every request; the cumulative form of Prometheus is computed only when it is exported.

`QuantileSketch` is a DDSketch, for results: its percentiles are within half a percent. A value lies in the bucket
floor(log(value) / log(γ)) with γ = 1.01. All values of a bucket are within a factor γ of each other, so the middle of the
bucket is at most (γ - 1) / 2 away from each of them, relatively. Only the count of each bucket is kept; the number of values,
their sum, minimum and maximum are exact. (C. Masson et al., DDSketch, VLDB 2019.)

    values 100, 100.4 and 250 µs   ->   buckets {462: 1, 463: 1, 554: 1}, total 450.4, minimum 100, maximum 250
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp, floor, log, sqrt
from typing import TYPE_CHECKING, Any, Final

from maitred.core.units import Micros, from_seconds, to_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray


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

    def bucket_of(self, value: Micros) -> int:
        """Return the number of the bucket in which a value is counted, from 0."""
        return bisect_left(self._bounds, value)

    def bound_of(self, share: float) -> Micros:
        """Return the smallest upper bound below which at least `share` of the values lie; twice the last bound if none is so
        large, 0 without values."""
        wanted, so_far = share * self.count, 0
        if not wanted:
            return 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            so_far += count
            if so_far >= wanted:
                return bound
        return 2 * self._bounds[-1]

    def merge(self, other: Histogram) -> None:
        """Add all values of `other`, which must have the same bounds."""
        if not any(other._counts):
            return
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total

    def share(self) -> tuple[list[int], Micros]:
        """Return the counts by bucket and the sum of all values, for `add`."""
        return [*self._counts], self.total

    def add(self, counts: Sequence[int], total: Micros) -> None:
        """Add the values of a histogram of the same bounds, as its `share` gives them."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, counts, strict=True)]
        self.total += total

    def clear(self) -> None:
        """Forget all values."""
        self._counts, self.total = [0] * len(self._counts), 0

    def prometheus_buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulative counts by upper bound (seconds, the last one `+Inf`), and the sum in seconds."""
        so_far, buckets = 0, []
        for bound, count in zip((*(f"{to_seconds(b):g}" for b in self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets, to_seconds(self.total)


_GAMMA = 1.01
_BUCKETS_PER_E = 1 / log(_GAMMA)
_BELOW_ONE = -1
"""The bucket of all values below 1."""


class QuantileSketch:
    """A sketch of durations in µs, which are at least 0."""

    __slots__ = ("_counts", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total: float = 0
        """The sum of all values: an int if all values are."""
        self.minimum: float = 0
        self.maximum: float = 0

    @property
    def bucket_counts(self) -> Mapping[int, int]:
        """The number of values in each bucket, by bucket index."""
        return self._counts

    @property
    def mean(self) -> float:
        """The mean of all values. Raises ZeroDivisionError without values."""
        return self.total / self.count

    @property
    def std(self) -> float:
        """Standard deviation of all values, each taken as the middle of its bucket; 0 without values."""
        counts = sorted(self._counts.items())  # sums of floats depend on the order
        middles = [(min(max(bucket_midpoint(index), self.minimum), self.maximum), n) for index, n in counts]
        mean = sum(middle * n for middle, n in middles) / (self.count or 1)
        return sqrt(sum((middle - mean) ** 2 * n for middle, n in middles) / (self.count or 1))

    def add(self, value: float, count: int = 1) -> None:
        """Add `value`, `count` times."""
        self._add_to_bucket(bucket_index(value), count)
        self._update_totals(value * count, count, value, value)

    def add_all(self, values: NDArray[Any]) -> None:
        """Add each of `values` once."""
        if not len(values):
            return
        import numpy as np

        for index, count in zip(*map(np.ndarray.tolist, np.unique(bucket_indices(values), return_counts=True)), strict=True):
            self._add_to_bucket(index, count)
        self._update_totals(values.sum().item(), len(values), values.min().item(), values.max().item())

    def add_buckets(self, bucket_counts: Mapping[int, int], total: float, minimum: float, maximum: float) -> None:
        """Add values, given their counts by bucket, sum, minimum and maximum."""
        for index, count in bucket_counts.items():
            self._add_to_bucket(index, count)
        self._update_totals(total, sum(bucket_counts.values()), minimum, maximum)

    def merge(self, other: QuantileSketch) -> None:
        """Add all values of `other`."""
        if other.count:
            self.add_buckets(other._counts, other.total, other.minimum, other.maximum)

    def percentile(self, percent: float) -> float:
        """Return a percentile, interpolated between the two nearest ranks as numpy does, each within half a percent.

        Raises ValueError without values.
        """
        if not self.count:
            raise ValueError("of no values there is no percentile")
        rank = percent / 100 * (self.count - 1)
        below = floor(rank)
        low, high = self._value_at_rank(below), self._value_at_rank(min(below + 1, self.count - 1))
        return low + (high - low) * (rank - below)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantileSketch):
            return NotImplemented
        mine, theirs = (self.total, self.minimum, self.maximum), (other.total, other.minimum, other.maximum)
        return self._counts == other._counts and mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"QuantileSketch({self.count} values, {self.minimum}..{self.maximum})"

    def _add_to_bucket(self, index: int, count: int) -> None:
        self._counts[index] = self._counts.get(index, 0) + count

    def _update_totals(self, total: float, count: int, minimum: float, maximum: float) -> None:
        # The 0 of an empty sketch must not become the minimum. As a maximum it does no harm, since durations are at least 0.
        self.minimum = min(self.minimum, minimum) if self.count else minimum
        self.maximum = max(self.maximum, maximum)
        self.count += count
        self.total += total

    def _value_at_rank(self, rank: int) -> float:
        """Return the value of this rank (from 0), within half a percent; exactly for the first and the last."""
        if rank == 0:
            return self.minimum
        if rank == self.count - 1:
            return self.maximum
        # Buckets are sorted here and not as they come, because values are added far more often than percentiles are asked for.
        so_far = 0
        for index in sorted(self._counts):
            so_far += self._counts[index]
            if so_far > rank:
                # The middle of the outermost buckets may lie outside of the values; their bounds are known exactly.
                return min(max(bucket_midpoint(index), self.minimum), self.maximum)
        raise AssertionError(f"rank {rank} of {self.count}")


def bucket_indices(values: NDArray[Any]) -> NDArray[Any]:
    """Return `bucket_index` of each value."""
    import numpy as np

    indices = np.full(len(values), _BELOW_ONE, dtype=np.int64)
    large = values >= 1
    indices[large] = np.floor(np.log(values[large]) * _BUCKETS_PER_E)
    return indices


def bucket_index(value: float) -> int:
    """Return the index of the bucket in which `value` lies."""
    return floor(log(value) * _BUCKETS_PER_E) if value >= 1 else _BELOW_ONE


@lru_cache(maxsize=4096)
def bucket_end(index: int) -> int:
    """Return the smallest whole number beyond a bucket."""
    end = max(1, floor(exp((index + 1) / _BUCKETS_PER_E))) if index > _BELOW_ONE else 1
    # The exponential may be off by one.
    while bucket_index(end) <= index:
        end += 1
    while end > 1 and bucket_index(end - 1) > index:
        end -= 1
    return end


def bucket_midpoint(index: int) -> float:
    """Return the value in the middle of a bucket."""
    return 0.0 if index == _BELOW_ONE else exp(index / _BUCKETS_PER_E) * (1 + _GAMMA) / 2
