"""The order and the ids of a trace's rows.

Rows are in order of arrival, or nearly: some formats are written in another order, and say by how many places a row may be late
(`TraceFormat.disorder`). That many are held back and sorted; a row that is later than that is a bad one. Rows of the same
instant keep the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from maitred.units import Micros
from maitred.workload.row import Row, RowError


def in_order(rows: Iterable[Row], disorder: int, refuse: Callable[[RowError], None]) -> Iterator[Row]:
    """The rows by arrival. One that comes too late is handed to `refuse` and, if that returns, left out."""
    ahead: list[tuple[Micros, int, Row]] = []
    latest: Micros | None = None
    for place, row in enumerate(rows):
        if latest is not None and row.at < latest:
            refuse(RowError("it arrived before the row above it", "rows must be in order of arrival"))
            continue
        heappush(ahead, (row.at, place, row))
        if len(ahead) > disorder:
            latest, _, first = heappop(ahead)
            yield first
    while ahead:
        yield heappop(ahead)[2]


class Ids:
    """Sees to it that the ids of a trace, where it has some, occur once: each must be larger than the one before."""

    def __init__(self) -> None:
        self._last: int | None = None

    def check(self, row: Row) -> None:
        """Rows in the order of the file. Raises RowError for an id that cannot be one."""
        last, this = self._last, row.id
        if last is None and this is None:
            return
        if last is not None and this is None:
            raise RowError("its id is no whole number", "those of the rows above are")
        if last is not None and this is not None and this <= last:
            raise RowError(f"its id is {this}, after {last}", "ids must rise from row to row")
        self._last = this
