"""power-of-two: the better of two drawn instances."""

from __future__ import annotations

from random import Random

from maitred.contracts import Choice, FleetView
from maitred.request import Request
from maitred.routing.policy import ROUTERS, BaseRouter, RouterInfo
from maitred.units import Micros


@ROUTERS.register("power-of-two")
class PowerOfTwo(BaseRouter):
    """Two instances are drawn; the one with fewer requests in flight is chosen, among equals the one drawn first.

    Nearly as even as looking at all (Mitzenmacher, "The Power of Two Choices", 2001), and several gateways that do not know of
    each other's requests do not all run to the same instance.
    """

    about = RouterInfo(
        line="of two drawn instances the one with fewer requests in flight", complexity="O(1)", reads="in flight"
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
        second = int(self._rng.random() * (count - 1))
        one, other = fleet[first], fleet[second + (second >= first)]
        return Choice(other.index if other.in_flight < one.in_flight else one.index, "better_of_two")
