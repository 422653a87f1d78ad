"""The order and the ids of a trace's rows.

Rows are in order of arrival, or nearly: some formats are written in another order, and say by how many places a row may be late
(`TraceFormat.disorder`). That many are held back and sorted; a row that is later than that is a bad one. Rows of the same
instant keep the order of the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heappushpop
from typing import Final

from maitred.units import Micros
from maitred.workload.row import Row, RowError

LARGEST_ID: Final = (1 << 63) - 1
"""Results have columns of 64 bits."""


def in_order(rows: Iterable[Row], disorder: int, refuse: Callable[[RowError], None]) -> Iterator[Row]:
    """The rows by arrival. One that comes too late is handed to `refuse` and, if that returns, left out."""
    ahead: list[tuple[Micros, int, Row]] = []
    latest: Micros | None = None
    for place, row in enumerate(rows):
        if latest is not None and row.at < latest:
            refuse(RowError("it arrived before the row above it", "rows must be in order of arrival"))
            continue
        if len(ahead) == disorder:
            latest, _, first = heappushpop(ahead, (row.at, place, row))
            yield first
        else:
            heappush(ahead, (row.at, place, row))
    while ahead:
        yield heappop(ahead)[2]


class Ids:
    """Sees to it that the ids of a trace, where it has some, occur once.

    What has been seen is kept as ranges, so ids without gaps, in whatever order, are next to nothing.
    """

    def __init__(self) -> None:
        self._numbered: bool | None = None
        self._firsts: list[int] = []
        self._ends: list[int] = []
        """Range i is from `_firsts[i]` to before `_ends[i]`; in order, with a gap between any two."""

    def check(self, row: Row) -> None:
        """Raises RowError for an id that cannot be one."""
        if self._numbered is None:
            self._numbered = row.id is not None
        if self._numbered and row.id is None:
            raise RowError("its id is no whole number", "those of the rows above are")
        if self._numbered and row.id is not None:
            if row.id > LARGEST_ID:
                raise RowError(f"its id is {row.id}", f"it must be at most {LARGEST_ID}")
            self._add(row.id)

    def _add(self, number: int) -> None:
        firsts, ends = self._firsts, self._ends
        place = bisect_right(firsts, number)  # of the first range that begins after it
        if place and number < ends[place - 1]:
            raise RowError(f"its id is {number}, as that of a row above", "ids must occur once")
        follows = bool(place) and ends[place - 1] == number
        precedes = place < len(firsts) and firsts[place] == number + 1
        if follows and precedes:
            ends[place - 1] = ends.pop(place)
            del firsts[place]
        elif follows:
            ends[place - 1] = number + 1
        elif precedes:
            firsts[place] = number
        else:
            firsts.insert(place, number)
            ends.insert(place, number + 1)
