"""A sketch of a distribution: how many values there were of about this size, in memory that does not grow with their number.

A value lies in the bucket floor(log(value) / log(γ)), so all values of a bucket are within a factor γ of each other, and the
middle of it is at most (γ - 1) / 2 away from each of them: half a percent. Counts, sum, least and greatest are exact
(DDSketch: C. Masson et al., VLDB 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, floor, log
from operator import mul
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


_GAMMA = 1.01
_BUCKETS_PER_E = 1 / log(_GAMMA)
_BELOW_ONE = -1
"""The bucket of all values below 1."""


class QuantileSketch:
    """Of durations in µs, which are at least 0."""

    __slots__ = ("_counts", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total: float = 0
        """The sum of all values: an int as long as they are."""
        self.minimum: float = 0
        self.maximum: float = 0

    @property
    def bucket_counts(self) -> Mapping[int, int]:
        """How many values are in each bucket."""
        return self._counts

    @property
    def mean(self) -> float:
        """Raises ZeroDivisionError without values."""
        return self.total / self.count

    def add(self, value: float, count: int = 1) -> None:
        """So many values of this size."""
        self._add_to_bucket(bucket_index(value), count)
        self._update_totals(value * count, count, value, value)

    def add_all(self, values: NDArray[Any]) -> None:
        """Every one of `values`."""
        if not len(values):
            return
        import numpy as np

        for number, times in zip(*map(np.ndarray.tolist, np.unique(bucket_indices(values), return_counts=True)), strict=True):
            self._add_to_bucket(number, times)
        self._update_totals(values.sum().item(), len(values), values.min().item(), values.max().item())

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Each value so many times."""
        if not counts:
            return
        import numpy as np

        numbers = bucket_indices(np.fromiter(counts, dtype=np.int64, count=len(counts)))
        for number, count in zip(numbers.tolist(), counts.values(), strict=True):
            self._add_to_bucket(number, count)
        self._update_totals(sum(map(mul, counts, counts.values())), sum(counts.values()), min(counts), max(counts))

    def add_buckets(self, bucket_counts: Mapping[int, int], total: float, minimum: float, maximum: float) -> None:
        """Values that somebody has sorted into buckets already."""
        for number, times in bucket_counts.items():
            self._add_to_bucket(number, times)
        self._update_totals(total, sum(bucket_counts.values()), minimum, maximum)

    def merge(self, other: QuantileSketch) -> None:
        """All values of `other`, too."""
        if other.count:
            self.add_buckets(other._counts, other.total, other.minimum, other.maximum)

    def percentile(self, percent: float) -> float:
        """As numpy does it, between the two nearest ranks, each within half a percent. Raises ValueError without values."""
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
        return f"Sketch({self.count} values, {self.minimum}..{self.maximum})"

    def _add_to_bucket(self, number: int, times: int) -> None:
        self._counts[number] = self._counts.get(number, 0) + times

    def _update_totals(self, total: float, times: int, least: float, greatest: float) -> None:
        self.minimum = min(self.minimum, least) if self.count else least
        self.maximum = max(self.maximum, greatest)
        self.count += times
        self.total += total

    def _value_at_rank(self, rank: int) -> float:
        """About the value of this rank, from 0."""
        if rank == 0:
            return self.minimum
        if rank == self.count - 1:
            return self.maximum
        so_far = 0
        for number in sorted(self._counts):
            so_far += self._counts[number]
            if so_far > rank:
                return min(max(bucket_midpoint(number), self.minimum), self.maximum)
        raise AssertionError(f"rank {rank} of {self.count}")


def bucket_indices(values: NDArray[Any]) -> NDArray[Any]:
    """`bucket` of each."""
    import numpy as np

    buckets = np.full(len(values), _BELOW_ONE, dtype=np.int64)
    large = values >= 1
    buckets[large] = np.floor(np.log(values[large]) * _BUCKETS_PER_E)
    return buckets


def bucket_index(value: float) -> int:
    """The number of the bucket of `value`."""
    return floor(log(value) * _BUCKETS_PER_E) if value >= 1 else _BELOW_ONE


def bucket_midpoint(index: int) -> float:
    """The value in the middle of a bucket."""
    return 0.0 if index == _BELOW_ONE else exp(index / _BUCKETS_PER_E) * (1 + _GAMMA) / 2
