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

Entries are never removed, only replaced, and found by position. So this heap does not build on `core.lazy_heap`: with the
calls of `LazyHeap._is_live` and `_drop_stale` a choice took 1.5 to 1.9 µs instead of 1.2 to 1.5 (4 to 256 instances), and
with all of them overridden nothing was left to share but the rule when to rebuild.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from maitred.core.contracts import FleetView, InstanceView

_Entry: TypeAlias = tuple[int, int, int]
"""Requests in flight, serial number of the look, position in the fleet."""


class InFlightHeap:
    """The instances of one fleet by `in_flight`."""

    __slots__ = ("_changed", "_entries", "_fleet", "_heap", "_next_check", "_num_looks", "_position_of")

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._position_of = {view.index: position for position, view in enumerate(fleet)}
        self._entries: list[_Entry] = [(view.in_flight, position, position) for position, view in enumerate(fleet)]
        """The live entry of each instance, by position."""
        self._num_looks = len(fleet)
        self._heap = self._entries.copy()
        heapify(self._heap)
        self._changed: dict[int, None] = {}
        """The indices of the instances that a request has left since the last choice."""
        self._next_check = 0
        """The position of the instance that is looked at in turn."""

    def mark_changed(self, instance: int) -> None:
        """Note that a request has left the instance with this index."""
        self._changed[instance] = None

    def least_loaded(self) -> InstanceView:
        """Return an instance with the fewest in flight: of several, the one that was looked at longest ago."""
        fleet, entries, heap = self._fleet, self._entries, self._heap
        self._refresh()
        while True:
            first = heap[0]
            position = first[2]
            if first[1] != entries[position][1]:  # not `is not`: in compiled code a tuple has no identity
                heappop(heap)
                continue
            view = fleet[position]
            count = view.in_flight
            if count <= first[0]:
                return view
            # More is in flight than the entry says, as after each request that was sent there. A driver need not report that:
            # an entry that is too low comes up by itself.
            self._num_looks += 1
            entries[position] = entry = (count, self._num_looks, position)
            heapreplace(heap, entry)

    def _refresh(self) -> None:
        """Look again at the instances that requests have left, and at one more in turn."""
        fleet, changed = self._fleet, self._changed
        if changed:
            for index in changed:
                position = self._position_of.get(index)
                if position is not None:
                    self._update(position, fleet[position].in_flight)
            changed.clear()
            if len(self._heap) > 2 * len(fleet) + 16:  # more than half of the entries are stale
                self._heap[:] = self._entries
                heapify(self._heap)
        self._next_check = check = (self._next_check + 1) % len(fleet)
        count = fleet[check].in_flight
        if count < self._entries[check][0]:
            self._update(check, count)

    def _update(self, position: int, count: int) -> None:
        """Give the instance a new entry, behind all others with the same count."""
        self._num_looks += 1
        self._entries[position] = entry = (count, self._num_looks, position)
        heappush(self._heap, entry)
