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

from maitred.contracts import FleetView, InstanceView

_Entry: TypeAlias = tuple[int, int, int]
"""Requests in flight, the how-manieth look it was, place in the fleet."""


class Standings:
    """The instances of one fleet by `in_flight`."""

    __slots__ = ("_entries", "_fleet", "_heap", "_looks", "_places", "_touched", "_turn")

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._places = {view.index: place for place, view in enumerate(fleet)}
        self._entries: list[_Entry] = [(view.in_flight, place, place) for place, view in enumerate(fleet)]
        """The latest of each, by place."""
        self._looks = len(fleet)
        self._heap = self._entries.copy()
        heapify(self._heap)
        self._touched: dict[int, None] = {}
        self._turn = 0

    def touch(self, instance: int) -> None:
        """A request has left the instance with this index."""
        self._touched[instance] = None

    def least(self) -> InstanceView:
        """The first of those with the fewest in flight."""
        fleet, entries, heap = self._fleet, self._entries, self._heap
        self._look_again()
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
            self._looks += 1
            entries[place] = entry = (count, self._looks, place)
            heapreplace(heap, entry)

    def _look_again(self) -> None:
        """At those touched, and at one in turn."""
        fleet, touched = self._fleet, self._touched
        if touched:
            for index in touched:
                place = self._places.get(index)
                if place is not None:
                    self._put(place, fleet[place].in_flight)
            touched.clear()
            if len(self._heap) > 2 * len(fleet) + 16:
                self._heap[:] = self._entries
                heapify(self._heap)
        self._turn = turn = (self._turn + 1) % len(fleet)
        count = fleet[turn].in_flight
        if count < self._entries[turn][0]:
            self._put(turn, count)

    def _put(self, place: int, count: int) -> None:
        """Behind all others that have as many."""
        self._looks += 1
        self._entries[place] = entry = (count, self._looks, place)
        heappush(self._heap, entry)
