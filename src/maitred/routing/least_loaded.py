"""least-loaded: the instance with the fewest requests in flight."""

from __future__ import annotations

from random import Random

from maitred.contracts import Choice, FleetView, Router
from maitred.request import Request
from maitred.routing.policy import ROUTERS
from maitred.units import Micros


@ROUTERS.register("least-loaded")
class LeastLoaded(Router):
    """Fewest in flight; among equals the next in turn, so that an idle fleet is used evenly.

    `in_flight` is counted by the driver itself and thus never stale. BLIS's `EffectiveLoad` adds queue depth and batch size
    to it, which counts every request twice.
    """

    def __init__(self, rng: Random) -> None:
        self._turn = 0

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        turn, count = self._turn, len(fleet)
        if not count:
            raise ValueError("no instance to choose from")
        best = fleet[turn % count]
        least = best.in_flight
        for offset in range(1, count):
            if not least:
                break
            view = fleet[(turn + offset) % count]
            if view.in_flight < least:
                best, least = view, view.in_flight
        self._turn = turn + 1
        return Choice(best.index, "least_loaded")

    def left(self, request: Request, instance: int, now: Micros) -> None:
        pass
