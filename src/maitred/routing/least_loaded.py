"""least-loaded: the instance with the least to do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random

from maitred.contracts import Choice, FleetView, InstanceView
from maitred.request import Request
from maitred.routing.fleets import PerFleet
from maitred.routing.policy import ROUTERS, Drawing, Reads, RouterInfo
from maitred.routing.standings import Standings
from maitred.units import Micros


class Load(Enum):
    """What counts as load."""

    IN_FLIGHT = "in_flight"
    """Counted by the driver itself, so never stale; and it changes only when the router knows, so few need be looked at."""
    EFFECTIVE = "effective"
    """BLIS's: waiting + running + in flight, which counts each request twice, and is as stale as what is known of queues."""


@ROUTERS.register("least-loaded")
class LeastLoaded(Drawing):
    """The instance with the fewest requests in flight; among equals the one left in peace for longest, so that an idle fleet
    is used in turn.

    `load=effective` is what BLIS calls `least-loaded`: waiting + running + in flight, ties drawn.
    """

    about = RouterInfo(
        line="fewest requests in flight; among equals the one left in peace for longest",
        complexity="O(log n); O(n) if load=effective",
        reads="in flight",
    )

    def __init__(self, rng: Random, load: Load = Load.IN_FLIGHT) -> None:
        super().__init__(rng)
        self._effective = load is Load.EFFECTIVE
        self._standings = PerFleet(Standings)
        self.reads = Reads.LOAD if self._effective else Reads.NOTHING

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if self._effective:
            return Choice(self._tie(request, _least(fleet)).index, "least_effective_load")
        return Choice(self._standings.of(fleet).least().index, "least_loaded")

    def left(self, request: Request, instance: int, now: Micros) -> None:
        for standings in self._standings.all:
            standings.touch(instance)


def effective_load(view: InstanceView) -> int:
    """BLIS's EffectiveLoad."""
    return view.waiting + view.running + view.in_flight


def _least(fleet: FleetView) -> Sequence[InstanceView]:
    """Those with the least effective load."""
    if not fleet:
        raise ValueError("no instance to choose from")
    loads = [effective_load(view) for view in fleet]
    least = min(loads)
    return [view for view, load in zip(fleet, loads, strict=True) if load == least]
