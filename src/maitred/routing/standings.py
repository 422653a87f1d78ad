"""Standings: who has the fewest requests in flight, without looking at everybody.

    shelves[k]    the instances that had k in flight when last looked at, in the order in which they came to this shelf
    touched       those that a request has left since the last choice
    least         no shelf below it holds anybody

A choice looks anew at those touched and puts each at the end of its shelf; then it takes the first of the lowest shelf, unless
that has more in flight by now: then it goes to the end of its new shelf, and the next is looked at. All of this happens at
most as often as requests are sent and leave, so a choice is O(1) on average, however many instances there are. Among equals
it is the one that was left in peace for longest: an idle fleet is used in turn.

Counts are read from the views and not kept here. That of a backend also has what other models sent there, and it does not
matter whether a driver counts before or after it says that somebody has left. A count that falls without a word is noticed as
well, though later: each choice looks at one more instance, in turn.
"""

from __future__ import annotations

from collections import OrderedDict

from maitred.contracts import FleetView, InstanceView


class Standings:
    """The instances of one fleet by `in_flight`."""

    __slots__ = ("_fleet", "_known", "_least", "_places", "_shelves", "_touched", "_turn")

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._places = {view.index: place for place, view in enumerate(fleet)}
        self._known = [view.in_flight for view in fleet]
        self._shelves: dict[int, OrderedDict[int, None]] = {}  # of a dict, the first would be behind all that were deleted
        for place, count in enumerate(self._known):
            self._shelf(count)[place] = None
        self._least = min(self._known)
        self._touched: dict[int, None] = {}
        self._turn = 0

    def touch(self, instance: int) -> None:
        """A request has left the instance with this index."""
        self._touched[instance] = None

    def least(self) -> InstanceView:
        """The first of those with the fewest in flight."""
        fleet, known, shelves = self._fleet, self._known, self._shelves
        self._look_again()
        while True:
            shelf = shelves.get(self._least)
            if shelf is None:
                self._least += 1
                continue
            place = next(iter(shelf))
            view = fleet[place]
            if view.in_flight <= known[place]:
                return view
            self._put(place, view.in_flight)

    def _look_again(self) -> None:
        """At those touched, and at one in turn."""
        fleet, touched = self._fleet, self._touched
        if touched:
            for index in touched:
                place = self._places.get(index)
                if place is not None:
                    self._put(place, fleet[place].in_flight)
            touched.clear()
        self._turn = turn = (self._turn + 1) % len(fleet)
        count = fleet[turn].in_flight
        if count < self._known[turn]:
            self._put(turn, count)

    def _put(self, place: int, count: int) -> None:
        """At the end of its shelf."""
        before = self._known[place]
        shelf = self._shelves[before]
        if count == before:
            shelf.move_to_end(place)
            return
        del shelf[place]
        if not shelf:
            del self._shelves[before]
        self._known[place] = count
        self._shelf(count)[place] = None
        if count < self._least:  # noqa: PLR1730 - min() would cost as much as all of the rest
            self._least = count

    def _shelf(self, count: int) -> OrderedDict[int, None]:
        shelf = self._shelves.get(count)
        if shelf is None:
            shelf = self._shelves[count] = OrderedDict()
        return shelf
