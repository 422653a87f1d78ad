"""The routers that look at load alone, or at nothing: `round-robin`, `least-loaded`, `power-of-two` and
`always-busiest`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random

from maitred.core.contracts import Choice, FleetView, InstanceView
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import ROUTERS, BaseRouter, RandomTieBreaker, RouterInfo, Signals, effective_load
from maitred.routing.in_flight_heap import InFlightHeap
from maitred.routing.per_fleet_cache import PerFleetCache


@ROUTERS.register("round-robin")
class RoundRobin(BaseRouter):
    """Each instance in turn, whatever their load (BLIS `round-robin`: counter mod n).

    Each model has a turn of its own. With one turn for all, two models that alternate would each use every second
    instance.
    """

    about = RouterInfo(summary="each in turn, whatever their load; a turn for each model", complexity="O(1)")

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        turn = self._turns.get(request.model, 0)
        self._turns[request.model] = turn + 1
        return Choice(fleet[turn % len(fleet)].index, "round_robin")


class LoadMeasure(Enum):
    """What counts as load."""

    IN_FLIGHT = "in_flight"
    """Requests in flight. The driver counts them itself, so the number is never stale."""
    EFFECTIVE = "effective"
    """BLIS's: waiting + running + in flight. It counts each request twice, and is as stale as what is known of
    queues."""


@ROUTERS.register("least-loaded")
class LeastLoaded(RandomTieBreaker):
    """The instance with the fewest requests in flight; among equals the least recently used one, so that an idle fleet
    is used in turn.

    `load=effective` is what BLIS calls `least-loaded`: waiting + running + in flight, ties drawn.
    """

    about = RouterInfo(
        summary="fewest requests in flight; among equals the least recently used one",
        complexity="O(log n); O(n) if load=effective",
        reads="in flight",
    )

    def __init__(self, rng: Random, load: LoadMeasure = LoadMeasure.IN_FLIGHT) -> None:
        super().__init__(rng)
        self._is_effective = load is LoadMeasure.EFFECTIVE
        self._heaps = PerFleetCache(InFlightHeap)
        self.signals = Signals.LOAD if self._is_effective else Signals.NOTHING

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if self._is_effective:
            return Choice(self._break_tie(request, _least_effective(fleet)).index, "least_effective_load")
        return Choice(self._heaps.get(fleet).least_loaded().index, "least_loaded")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        for heap in self._heaps.values:
            heap.mark_changed(instance)


def _least_effective(fleet: FleetView) -> Sequence[InstanceView]:
    """Return the instances with the least effective load."""
    if not fleet:
        raise ValueError("no instance to choose from")
    loads = [effective_load(view) for view in fleet]
    least = min(loads)
    return [view for view, load in zip(fleet, loads, strict=True) if load == least]


@ROUTERS.register("power-of-two")
class PowerOfTwo(BaseRouter):
    """Of two drawn instances the one with fewer requests in flight, of two equal ones the one drawn first.

    This is nearly as even as looking at all (Mitzenmacher, "The Power of Two Choices", 2001), and several gateways that
    do not know of each other's requests do not all choose the same instance.
    """

    about = RouterInfo(
        summary="of two drawn instances the one with fewer requests in flight", complexity="O(1)", reads="in flight"
    )

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        count = len(fleet)
        if not count:
            raise ValueError("no instance to choose from")
        if count == 1:
            return Choice(fleet[0].index, "only_one")
        first = int(self._rng.random() * count)
        # The second is drawn from the others, so that two instances are always compared and all pairs are equally likely.
        second = int(self._rng.random() * (count - 1))
        one, other = fleet[first], fleet[second + (second >= first)]
        return Choice(other.index if other.in_flight < one.in_flight else one.index, "better_of_two")


@ROUTERS.register("always-busiest")
class AlwaysBusiest(BaseRouter):
    """The instance with the most to do (BLIS `always-busiest`: waiting + running + in flight, the first among equals).

    For tests only: whatever tells a good router from a bad one must tell this one from all others.
    """

    about = RouterInfo(
        summary="for tests only: the busiest, to see what harm that does",
        complexity="O(n)",
        reads="in flight, waiting, running",
    )
    signals = Signals.LOAD

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        return Choice(max(fleet, key=effective_load).index, "busiest")
