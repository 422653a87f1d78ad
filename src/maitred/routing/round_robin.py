"""round-robin: each instance in turn."""

from __future__ import annotations

from maitred.contracts import Choice, FleetView
from maitred.request import Request
from maitred.routing.policy import ROUTERS, BaseRouter, RouterInfo
from maitred.units import Micros


@ROUTERS.register("round-robin")
class RoundRobin(BaseRouter):
    """Each in turn, whatever their load (BLIS `round-robin`: counter mod n).

    Each model has a turn of its own: with one for all, two models that alternate would each use every second instance.
    """

    about = RouterInfo(line="each in turn, whatever their load; a turn for each model", complexity="O(1)")

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        turn = self._turns.get(request.model, 0)
        self._turns[request.model] = turn + 1
        return Choice(fleet[turn % len(fleet)].index, "round_robin")
