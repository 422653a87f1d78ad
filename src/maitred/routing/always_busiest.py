"""always-busiest: the worst that a router can do."""

from __future__ import annotations

from maitred.contracts import Choice, FleetView
from maitred.request import Request
from maitred.routing.least_loaded import effective_load
from maitred.routing.policy import ROUTERS, BaseRouter, Reads, RouterInfo
from maitred.units import Micros


@ROUTERS.register("always-busiest")
class AlwaysBusiest(BaseRouter):
    """The instance with the most to do (BLIS `always-busiest`: waiting + running + in flight, the first among equals).

    For tests only: whatever is meant to tell a good router from a bad one must tell this one from all others.
    """

    about = RouterInfo(
        line="for tests only: the busiest, to see what harm that does",
        complexity="O(n)",
        reads="in flight, waiting, running",
    )
    reads = Reads.LOAD

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        return Choice(max(fleet, key=effective_load).index, "busiest")
