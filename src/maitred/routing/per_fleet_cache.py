"""A cache of what a router knows of each fleet that it is shown.

A driver that shows the same instances shows the same object (`FleetView`), so a fleet is known by the identity of that
object. The cache holds the object as long as it holds what belongs to it, so that no other object can get its identity
meanwhile. Fleets come and go: a gateway makes new ones when the health of a backend changes, and for each second
attempt of a request. So only the `_MAX_FLEETS` that were shown last are kept.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from maitred.core.contracts import FleetView

T = TypeVar("T")
_MAX_FLEETS = 64
"""Room for the models behind one gateway, and some fleets that are shown once."""


class PerFleetCache(Generic[T]):
    """Values by fleet. `make` makes the value when a fleet is shown for the first time, or again after `_MAX_FLEETS`
    others."""

    def __init__(self, make: Callable[[FleetView], T]) -> None:
        self._make = make
        self._cached: OrderedDict[int, tuple[FleetView, T]] = OrderedDict()
        """The fleets by their identity, the one that was shown longest ago first."""
        self._last: tuple[FleetView, T] | None = None
        self.values: Sequence[T] = ()
        """All values in the cache."""

    def get(self, fleet: FleetView) -> T:
        """Return the value of `fleet`, O(1) if it is known. Raises ValueError if the fleet is empty."""
        last = self._last
        if last is not None and last[0] is fleet:
            return last[1]
        if not fleet:
            raise ValueError("no instance to choose from")
        cached = self._cached.get(id(fleet))
        if cached is None:
            cached = self._cached[id(fleet)] = (fleet, self._make(fleet))
            if len(self._cached) > _MAX_FLEETS:
                self._cached.popitem(last=False)
            self.values = [value for _, value in self._cached.values()]
        else:
            self._cached.move_to_end(id(fleet))
        self._last = cached
        return cached[1]
