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
_PER_E = 1 / log(_GAMMA)
_SMALL = -1
"""The bucket of all values below 1."""


class Sketch:
    """Of durations in µs, which are at least 0."""

    __slots__ = ("_counts", "count", "greatest", "least", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total: float = 0
        """The sum of all values: an int as long as they are."""
        self.least: float = 0
        self.greatest: float = 0

    @property
    def counts(self) -> Mapping[int, int]:
        """How many values are in each bucket."""
        return self._counts

    @property
    def mean(self) -> float:
        """Raises ZeroDivisionError without values."""
        return self.total / self.count

    def add(self, value: float, times: int = 1) -> None:
        """So many values of this size."""
        self._put(bucket(value), times)
        self._sum(value * times, times, value, value)

    def add_all(self, values: NDArray[Any]) -> None:
        """Every one of `values`."""
        if not len(values):
            return
        import numpy as np

        for number, times in zip(*map(np.ndarray.tolist, np.unique(buckets(values), return_counts=True)), strict=True):
            self._put(number, times)
        self._sum(values.sum().item(), len(values), values.min().item(), values.max().item())

    def add_counted(self, times: Mapping[int, int]) -> None:
        """Each value so many times."""
        if not times:
            return
        import numpy as np

        numbers = buckets(np.fromiter(times, dtype=np.int64, count=len(times)))
        for number, count in zip(numbers.tolist(), times.values(), strict=True):
            self._put(number, count)
        self._sum(sum(map(mul, times, times.values())), sum(times.values()), min(times), max(times))

    def add_run(self, buckets: Mapping[int, int], total: float, least: float, greatest: float) -> None:
        """Values that somebody has sorted into buckets already."""
        for number, times in buckets.items():
            self._put(number, times)
        self._sum(total, sum(buckets.values()), least, greatest)

    def merge(self, other: Sketch) -> None:
        """All values of `other`, too."""
        if other.count:
            self.add_run(other._counts, other.total, other.least, other.greatest)

    def percentile(self, percent: float) -> float:
        """As numpy does it, between the two nearest ranks, each within half a percent. Raises ValueError without values."""
        if not self.count:
            raise ValueError("of no values there is no percentile")
        rank = percent / 100 * (self.count - 1)
        below = floor(rank)
        low, high = self._ranked(below), self._ranked(min(below + 1, self.count - 1))
        return low + (high - low) * (rank - below)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        mine, theirs = (self.total, self.least, self.greatest), (other.total, other.least, other.greatest)
        return self._counts == other._counts and mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Sketch({self.count} values, {self.least}..{self.greatest})"

    def _put(self, number: int, times: int) -> None:
        self._counts[number] = self._counts.get(number, 0) + times

    def _sum(self, total: float, times: int, least: float, greatest: float) -> None:
        self.least = min(self.least, least) if self.count else least
        self.greatest = max(self.greatest, greatest)
        self.count += times
        self.total += total

    def _ranked(self, rank: int) -> float:
        """About the value of this rank, from 0."""
        if rank == 0:
            return self.least
        if rank == self.count - 1:
            return self.greatest
        so_far = 0
        for number in sorted(self._counts):
            so_far += self._counts[number]
            if so_far > rank:
                return min(max(middle(number), self.least), self.greatest)
        raise AssertionError(f"rank {rank} of {self.count}")


def buckets(values: NDArray[Any]) -> NDArray[Any]:
    """`bucket` of each."""
    import numpy as np

    buckets = np.full(len(values), _SMALL, dtype=np.int64)
    large = values >= 1
    buckets[large] = np.floor(np.log(values[large]) * _PER_E)
    return buckets


def bucket(value: float) -> int:
    """The number of the bucket of `value`."""
    return floor(log(value) * _PER_E) if value >= 1 else _SMALL


def middle(number: int) -> float:
    """The value in the middle of a bucket."""
    return 0.0 if number == _SMALL else exp(number / _PER_E) * (1 + _GAMMA) / 2
