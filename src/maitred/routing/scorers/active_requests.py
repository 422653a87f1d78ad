"""active-requests: who was sent little."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.contracts import FleetView
from maitred.request import Request
from maitred.routing.policy import Reads, RouterInfo
from maitred.routing.scorers.scorer import SCORERS, BaseScorer


@SCORERS.register("active-requests")
class ActiveRequests(BaseScorer):
    """`(most - in flight) / most`, and 1 for all if nothing is in flight (llm-d's active-request scorer, BLIS
    `active-requests`). In flight is never stale."""

    about = RouterInfo(line="(most - in flight) / most; 1 if there is none", complexity="O(n)", reads="in flight")
    reads = Reads.NOTHING

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        counts = [view.in_flight for view in fleet]
        most = max(counts)
        return [(most - count) / most for count in counts] if most else [1.0] * len(counts)
