"""What a router keeps of each fleet that it is shown: a cache by fleet, and the instances in the order of requests in flight.

**The cache.** A driver that shows the same instances shows the same object (`FleetView`), so a fleet is known by the identity
of that object. The cache holds the object as long as it holds what belongs to it, so that no other object can get its
identity meanwhile. Fleets come and go: a gateway makes new ones when the health of a backend changes, and for each second
attempt of a request. So only the `_MAX_FLEETS` that were shown last are kept.

**The order** finds the instance with the fewest requests in flight without looking at all of them. There is a queue for each
count: the instances with so many in flight when they were last looked at, in the order of these looks. A choice looks again at
the instances that a request has left since the last choice, and then takes the first one of the lowest queue. If that instance
has more in flight by now, it moves to the end of another queue and the next one is taken. Both happen at most as often as
requests are sent and end, so a choice is O(1) on average, however many instances there are. Among equals the instance wins that
was looked at longest ago, so an idle fleet is used in turn. For example, with three instances that have 0, 1 and 1 in flight:

    0: A    1: B C      the choice is A
    0:      1: B C A    the next choice finds that A has 1 by now, puts it behind C and takes B

Counts are read from the views and not kept here. So the count of a backend contains what other models sent there, and it does
not matter whether a driver counts before or after it says that a request has ended. A count that falls without a word is
noticed later: each choice looks at one more instance, in turn.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from maitred.core.contracts import Choice, FleetView, InstanceView
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import MAX_CHECKED

T = TypeVar("T")
_MAX_FLEETS = 64
"""Room for the models behind one gateway, and some fleets that are shown once."""


class PerFleetCache(Generic[T]):
    """Values by fleet. `make` makes the value when a fleet is shown for the first time, or again after `_MAX_FLEETS` others."""

    def __init__(self, make: Callable[[FleetView], T]) -> None:
        self._make = make
        self._cached: OrderedDict[int, tuple[FleetView, T]] = OrderedDict()
        """The fleets by their identity, the one that was shown longest ago first."""
        self.last: tuple[FleetView, T] | None = None
        """The fleet that was shown last, with its value."""
        self.values: Sequence[T] = ()
        """All values in the cache."""
        self._num_checked = 0
        """How many fleets `check` has looked at."""

    def get(self, fleet: FleetView) -> T:
        """Return the value of `fleet`, O(1) if it is known. Raises ValueError if the fleet is empty."""
        last = self.last
        if last is not None and last[0] is fleet:
            return last[1]
        if not fleet:
            raise ValueError("no instance to choose from")
        # By identity, because comparing fleets costs O(n). Keeping the fleet beside its value keeps its id from being reused.
        cached = self._cached.get(id(fleet))
        if cached is None:
            cached = self._cached[id(fleet)] = (fleet, self._make(fleet))
            if len(self._cached) > _MAX_FLEETS:
                self._cached.popitem(last=False)
            self.values = [value for _, value in self._cached.values()]
        else:
            self._cached.move_to_end(id(fleet))
        self.last = cached
        return cached[1]

    def check(self, check_value: Callable[[FleetView, T], None]) -> None:
        """Raise InvariantError if a fleet is kept under another identity, or too many are. Call `check_value` with the fleets
        and their values: with all of them, or with other ones each time where they have many instances."""
        cached = list(self._cached.items())
        if len(cached) > _MAX_FLEETS or len(cached) != len(self.values):
            raise InvariantError(f"{len(cached)} fleets and {len(self.values)} values are kept, and may be {_MAX_FLEETS}")
        if any(identity != id(fleet) for identity, (fleet, _) in cached):
            raise InvariantError("what belongs to a fleet is kept under the identity of another object")
        left = MAX_CHECKED
        for _ in cached:
            fleet, value = cached[self._num_checked % len(cached)][1]
            self._num_checked += 1
            check_value(fleet, value)
            left -= len(fleet)
            if left <= 0:
                break


def views_by_index(fleet: FleetView) -> Mapping[int, InstanceView]:
    """Return the instances of a fleet by their index."""
    return {view.index: view for view in fleet}


def check_views(fleet: FleetView, views: Mapping[int, InstanceView]) -> None:
    """Raise InvariantError unless `views` are the instances of `fleet` by their index."""
    if len(views) != len(fleet) or any(views.get(view.index) is not view for view in fleet):
        raise InvariantError(f"instances {[view.index for view in fleet]} are shown, and {list(views)} are kept of them")


class InFlightRouter:
    """The router `least-loaded`. (It is registered in `policies`, since a compiled class cannot be.)"""

    def __init__(self) -> None:
        self._orders = PerFleetCache(InFlightOrder)

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        last: tuple[FleetView, InFlightOrder] | None = self._orders.last
        if last is not None and last[0] is fleet:  # as `get`, without its call
            return last[1].least_loaded()
        if len(fleet) == 1:
            return Choice(fleet[0].index, "least_loaded")
        return self.order_of(fleet).least_loaded()

    def order_of(self, fleet: FleetView) -> InFlightOrder:
        """The order by which this router chooses among `fleet`. Raises ValueError if it is empty."""
        order: InFlightOrder = self._orders.get(fleet)
        return order

    def fewest(self, fleet: FleetView) -> int:
        """Return the fewest requests in flight of the instances of `fleet`. Raises ValueError if it is empty."""
        order = self.order_of(fleet)
        order.least_loaded()
        return order.fewest

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        order: InFlightOrder
        for order in self._orders.values:
            order.changed[instance] = None

    def check(self) -> None:
        """Raise InvariantError if an order contradicts itself."""
        self._orders.check(check_order)


class InFlightOrder:
    """The instances of one fleet by `in_flight`."""

    __slots__ = ("_choices", "_counts", "_fleet", "_next_check", "_position_of", "_queues", "changed", "fewest")

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = list(fleet)  # a list is the quickest to look up
        self._position_of = {view.index: position for position, view in enumerate(fleet)}
        self._choices = [Choice(view.index, "least_loaded") for view in fleet]
        self._counts: list[int] = []
        """What was in flight in each instance when it was last looked at, by position."""
        self._queues: list[dict[int, None]] = []
        """The positions with each count, in the order in which they were looked at."""
        for position, view in enumerate(fleet):
            self._counts.append(view.in_flight)
            self._queue_of(view.in_flight)[position] = None
        self.fewest = 0
        """The fewest requests in flight, as of the last choice; no queue of a lower count holds an instance."""
        self.changed: dict[int, None] = {}
        """The indices of the instances that a request has left since the last choice."""
        self._next_check = 0
        """The position of the instance that is looked at in turn."""

    def least_loaded(self) -> Choice:
        """Choose an instance with the fewest in flight: of several, the one that was looked at longest ago."""
        fleet, counts, queues = self._fleet, self._counts, self._queues
        if self.changed:
            self._look_again()
        # And one more is looked at in turn, whose count may have fallen without a word.
        check = self._next_check + 1
        self._next_check = check = check if check < len(counts) else 0
        count = fleet[check].in_flight
        if count < counts[check]:
            self._move(check, count)
        least = self.fewest
        while True:
            while not queues[least]:
                least += 1
            position = next(iter(queues[least]))
            count = fleet[position].in_flight
            if count <= least:
                self.fewest = least
                return self._choices[position]
            # More is in flight than the last look said, as after each request that was sent there. A driver need not report
            # that: an instance with a count that is too low comes up by itself.
            self._move(position, count)

    def _look_again(self) -> None:
        """Look again at the instances that requests have left."""
        for index in self.changed:
            position = self._position_of.get(index)
            if position is not None:
                self._move(position, self._fleet[position].in_flight)
        self.changed.clear()

    def _move(self, position: int, count: int) -> None:
        """Put the instance behind all others with the same count."""
        counts, queues = self._counts, self._queues
        del queues[counts[position]][position]
        counts[position] = count
        if count < len(queues):
            queues[count][position] = None
            self.fewest = count if count < self.fewest else self.fewest
        else:
            self._queue_of(count)[position] = None

    def _queue_of(self, count: int) -> dict[int, None]:
        queues = self._queues
        while len(queues) <= count:
            queues.append({})
        return queues[count]

    def check(self) -> None:
        """Raise InvariantError unless each instance is in one queue, that of its count, and none is below `fewest`."""
        counts, fleet = self._counts, self._fleet
        if [self._position_of.get(view.index) for view in fleet] != list(range(len(counts))):
            raise InvariantError(f"the positions of the instances are {self._position_of}")
        in_queues = 0
        for count, queue in enumerate(self._queues):
            if queue and count < self.fewest:
                raise InvariantError(f"an instance has {count} in flight, and {self.fewest} are the fewest")
            for position in queue:
                if counts[position] != count:
                    raise InvariantError(f"position {position} is in queue {count}, and has {counts[position]} in flight")
            in_queues += len(queue)
        if in_queues != len(counts):
            raise InvariantError(f"{in_queues} of {len(counts)} instances are in a queue")


def check_order(fleet: FleetView, order: InFlightOrder) -> None:
    """Raise InvariantError if the order of a fleet contradicts itself."""
    order.check()
