"""What admission tells of a pool as a whole: how it looks at an instant, and what has changed in it by itself.

Structs are here and not in `counters`, which is compiled: mypyc cannot compile them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from maitred.admission.terms.counters import ClassView
from maitred.core.request import PriorityClass
from maitred.core.units import Micros


class PoolView(msgspec.Struct, frozen=True):
    """One pool at this instant."""

    capacity: int
    """Slots; 1,000,000,000 where there is no limit."""
    in_flight: int
    """Requests that hold a slot. Above `capacity` after a shrink, until enough have ended."""
    waiting: int
    """Requests that do not hold a slot yet."""
    classes: dict[PriorityClass, ClassView]
    """Most urgent first."""


class PoolSurvey(msgspec.Struct, frozen=True):
    """All pools, and each class over all of them."""

    pools: dict[str, PoolView]
    """By name."""
    classes: dict[PriorityClass, ClassView]
    """Most urgent first; nothing if there are no pools."""

    def add(self, name: str, pool: PoolView) -> None:
        """Add what a pool looks like."""
        self.pools[name] = pool
        for c, view in pool.classes.items():
            self.classes.setdefault(c, ClassView()).merge_view(view)


class HeadroomChange(msgspec.Struct, frozen=True):
    """A line of the decision log: with `reserve: adaptive` another number of slots is kept free for a class."""

    at: Micros
    pool: str
    priority_class: str
    slots: int
    before: int


class HeadroomWatch:
    """Tells the log which headroom has changed since it last asked."""

    def __init__(self, headroom: Callable[[], Mapping[str, Sequence[int]]]) -> None:
        """`headroom` returns the slots that are kept free, by pool and class."""
        self._headroom = headroom
        self._told: dict[str, Sequence[int]] = {}

    def changes(self, now: Micros) -> Iterator[HeadroomChange]:
        """Yield what has changed, at `now`."""
        for pool, slots in self._headroom().items():
            before = self._told.get(pool, [0] * len(slots))
            self._told[pool] = slots
            for c in PriorityClass:
                if slots[c] != before[c]:
                    yield HeadroomChange(now, pool, c.label, slots[c], before[c])
