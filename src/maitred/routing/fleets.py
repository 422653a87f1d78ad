"""What a router keeps about each fleet that it is shown.

A driver that shows the same instances shows the same object (`FleetView`), so a fleet is known by its identity. It is held as
long as something is kept about it: no other object can take its identity meanwhile. Fleets come and go: a gateway makes new
ones when the health of a backend changes, and for each second attempt of a request. So only those shown lately are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from maitred.contracts import FleetView

T = TypeVar("T")
_MOST = 64
"""Fleets: the models behind one gateway, and some that were shown once."""


class PerFleet(Generic[T]):
    """`make` makes what is kept, from the fleet as it is when it is shown first, or again after `_MOST` others."""

    def __init__(self, make: Callable[[FleetView], T]) -> None:
        self._make = make
        self._kept: OrderedDict[int, tuple[FleetView, T]] = OrderedDict()
        self._last: tuple[FleetView, T] | None = None
        self.all: Sequence[T] = ()
        """What is kept now."""

    def of(self, fleet: FleetView) -> T:
        """Raises ValueError for an empty fleet. O(1) for one that is known."""
        last = self._last
        if last is not None and last[0] is fleet:
            return last[1]
        if not fleet:
            raise ValueError("no instance to choose from")
        kept = self._kept.get(id(fleet))
        if kept is None:
            kept = self._kept[id(fleet)] = (fleet, self._make(fleet))
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
            self.all = [known for _, known in self._kept.values()]
        else:
            self._kept.move_to_end(id(fleet))
        self._last = kept
        return kept[1]
