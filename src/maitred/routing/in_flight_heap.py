"""The instance of a fleet with the fewest requests in flight, found without looking at all of them.

Each instance has one live entry in a heap: (requests in flight when it was last looked at, serial number of that look,
position in the fleet). A choice looks again at the instances that a request has left since the last choice, and then
takes the first of the heap. If that instance has more in flight by now, it gets a new entry and the next one is taken.
Both happen at most as often as requests are sent and end, so a choice is O(log n) on average, with n instances. Among
equals the instance wins that was looked at longest ago, so an idle fleet is used in turn. For example, with three
instances that have 0, 1 and 1 in flight:

    (0, 0, A)  (1, 1, B)  (1, 2, C)      the choice is A
    (1, 1, B)  (1, 2, C)  (1, 3, A)      the next choice finds that A has 1 by now, looks behind it and takes B

Counts are read from the views and not kept here. So the count of a backend contains what other models sent there, and
it does not matter whether a driver counts before or after it says that a request has ended. A count that falls without
a word is noticed later: each choice looks at one more instance, in turn.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import Any

from maitred.core.contracts import FleetView, InstanceView
from maitred.core.lazy_heap import LazyHeap


class InFlightHeap(LazyHeap[tuple[Any, ...]]):
    """The instances of one fleet by `in_flight`."""

    __slots__ = ("_changed", "_fleet", "_latest", "_next_check", "_num_looks", "_position_of")

    def __init__(self, fleet: FleetView) -> None:
        super().__init__()
        self._fleet = fleet
        self._position_of = {view.index: position for position, view in enumerate(fleet)}
        self._latest = [(view.in_flight, position, position) for position, view in enumerate(fleet)]
        """The live entry of each instance, by position."""
        self._num_looks = len(fleet)
        self._heap.extend(self._latest)
        heapify(self._heap)
        self._changed: dict[int, None] = {}
        """The indices of the instances that a request has left since the last choice."""
        self._next_check = 0
        """The position of the instance that is looked at in turn."""

    def _is_live(self, entry: tuple[Any, ...]) -> bool:
        return bool(self._latest[entry[2]][1] == entry[1])

    def mark_changed(self, instance: int) -> None:
        """Note that a request has left the instance with this index."""
        self._changed[instance] = None

    def least_loaded(self) -> InstanceView:
        """Return an instance with the fewest in flight: of several, the one that was looked at longest ago."""
        self._refresh()
        while True:
            if self._num_stale:
                self._drop_stale()
            entry = self._heap[0]
            position: int = entry[2]
            view = self._fleet[position]
            count = view.in_flight
            if count <= entry[0]:
                return view
            self._num_looks += 1
            self._latest[position] = latest = (count, self._num_looks, position)
            heapreplace(self._heap, latest)

    def _refresh(self) -> None:
        """Look again at the instances that requests have left, and at one more in turn."""
        fleet, changed = self._fleet, self._changed
        if changed:
            for index in changed:
                position = self._position_of.get(index)
                if position is not None:
                    self._update(position, fleet[position].in_flight)
            changed.clear()
        self._next_check = check = (self._next_check + 1) % len(fleet)
        count = fleet[check].in_flight
        if count < self._latest[check][0]:
            self._update(check, count)

    def _update(self, position: int, count: int) -> None:
        """Give the instance a new entry, behind all others with the same count."""
        self._num_looks += 1
        self._latest[position] = latest = (count, self._num_looks, position)
        self.push_entry(latest)
        self.mark_stale()
