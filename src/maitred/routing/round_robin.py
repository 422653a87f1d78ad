"""round-robin: each instance in turn."""

from __future__ import annotations

from random import Random

from maitred.contracts import Choice, FleetView, Router
from maitred.request import Request
from maitred.routing.policy import ROUTERS
from maitred.units import Micros


@ROUTERS.register("round-robin")
class RoundRobin(Router):
    """Each in turn, whatever their load (BLIS `round-robin`: counter mod n)."""

    def __init__(self, rng: Random) -> None:
        self._turn = 0

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        view = fleet[self._turn % len(fleet)]
        self._turn += 1
        return Choice(view.index, "round_robin")

    def left(self, request: Request, instance: int, now: Micros) -> None:
        pass
