"""What a router keeps about each fleet that it is shown.

A driver that shows the same instances shows the same object (`FleetView`), so a fleet is known by its identity. It is held as
long as something is kept about it: no other object can take its identity meanwhile. Fleets come and go: a gateway makes new
ones when the health of a backend changes, and for each second attempt of a request. So only those shown lately are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from maitred.core.contracts import FleetView

T = TypeVar("T")
_MAX_FLEETS = 64
"""Fleets: the models behind one gateway, and some that were shown once."""


class PerFleetCache(Generic[T]):
    """`make` makes what is kept, from the fleet as it is when it is shown first, or again after `_MOST` others."""

    def __init__(self, make: Callable[[FleetView], T]) -> None:
        self._make = make
        self._cached: OrderedDict[int, tuple[FleetView, T]] = OrderedDict()
        self._last: tuple[FleetView, T] | None = None
        self.values: Sequence[T] = ()
        """What is kept now."""

    def get(self, fleet: FleetView) -> T:
        """Raises ValueError for an empty fleet. O(1) for one that is known."""
        last = self._last
        if last is not None and last[0] is fleet:
            return last[1]
        if not fleet:
            raise ValueError("no instance to choose from")
        kept = self._cached.get(id(fleet))
        if kept is None:
            kept = self._cached[id(fleet)] = (fleet, self._make(fleet))
            if len(self._cached) > _MAX_FLEETS:
                self._cached.popitem(last=False)
            self.values = [known for _, known in self._cached.values()]
        else:
            self._cached.move_to_end(id(fleet))
        self._last = kept
        return kept[1]
