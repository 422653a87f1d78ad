"""Standings: who has the fewest requests in flight, without looking at everybody.

A heap of entries (requests in flight when last looked at, when that was, whom it is about), of which the latest of each
instance counts. A choice looks anew at those that a request has left since the last one, and then takes the first of the heap,
unless that one has more in flight by now: then it gets its place anew, and the next is looked at. All of this happens at most
as often as requests are sent and leave, so a choice is O(log n) on average, with n instances. Among equals it is the one that
was left in peace for longest: an idle fleet is used in turn.

Counts are read from the views and not kept here. That of a backend also has what other models sent there, and it does not
matter whether a driver counts before or after it says that somebody has left. A count that falls without a word is noticed as
well, though later: each choice looks at one more instance, in turn.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from maitred.core.contracts import FleetView, InstanceView

_Entry: TypeAlias = tuple[int, int, int]
"""Requests in flight, the how-manieth look it was, place in the fleet."""


class InFlightHeap:
    """The instances of one fleet by `num_in_flight`."""

    __slots__ = ("_changed", "_entries", "_fleet", "_heap", "_next_check", "_num_entries", "_position_of")

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._position_of = {view.index: place for place, view in enumerate(fleet)}
        self._entries: list[_Entry] = [(view.in_flight, place, place) for place, view in enumerate(fleet)]
        """The latest of each, by place."""
        self._num_entries = len(fleet)
        self._heap = self._entries.copy()
        heapify(self._heap)
        self._changed: dict[int, None] = {}
        self._next_check = 0

    def mark_changed(self, instance: int) -> None:
        """A request has left the instance with this index."""
        self._changed[instance] = None

    def least_loaded(self) -> InstanceView:
        """The first of those with the fewest in flight."""
        fleet, entries, heap = self._fleet, self._entries, self._heap
        self._refresh()
        while True:
            first = heap[0]
            place = first[2]
            if first[1] != entries[place][1]:  # not `is not`: compiled, a tuple has no identity
                heappop(heap)
                continue
            view = fleet[place]
            count = view.in_flight
            if count <= first[0]:
                return view
            self._num_entries += 1
            entries[place] = entry = (count, self._num_entries, place)
            heapreplace(heap, entry)

    def _refresh(self) -> None:
        """At those touched, and at one in turn."""
        fleet, touched = self._fleet, self._changed
        if touched:
            for index in touched:
                place = self._position_of.get(index)
                if place is not None:
                    self._update(place, fleet[place].in_flight)
            touched.clear()
            if len(self._heap) > 2 * len(fleet) + 16:
                self._heap[:] = self._entries
                heapify(self._heap)
        self._next_check = turn = (self._next_check + 1) % len(fleet)
        count = fleet[turn].in_flight
        if count < self._entries[turn][0]:
            self._update(turn, count)

    def _update(self, position: int, count: int) -> None:
        """Behind all others that have as many."""
        self._num_entries += 1
        self._entries[position] = entry = (count, self._num_entries, position)
        heappush(self._heap, entry)
