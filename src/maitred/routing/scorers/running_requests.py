"""running-requests: whose running batch is small."""

from __future__ import annotations

from maitred.contracts import InstanceView
from maitred.routing.policy import RouterInfo
from maitred.routing.scorers.scorer import SCORERS, LeastIsBest


@SCORERS.register("running-requests")
class RunningRequests(LeastIsBest):
    """`(most - running) / (most - least)` (GAIE's running-requests scorer, BLIS `running-requests`)."""

    about = RouterInfo(line="(most - running) / (most - least); 1 if all are equal", complexity="O(n)", reads="running")

    def count(self, view: InstanceView) -> int:
        return view.running
