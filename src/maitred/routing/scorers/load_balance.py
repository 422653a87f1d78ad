"""load-balance: who has little to do."""

from __future__ import annotations

from maitred.contracts import InstanceView
from maitred.routing.least_loaded import effective_load
from maitred.routing.policy import RouterInfo
from maitred.routing.scorers.scorer import SCORERS, ViewScorer


@SCORERS.register("load-balance")
class LoadBalance(ViewScorer):
    """`1 / (1 + waiting + running + in flight)` (BLIS `load-balance`). Differences count less the more there is to do."""

    about = RouterInfo(line="1 / (1 + waiting + running + in flight)", complexity="O(n)", reads="in flight, waiting, running")

    def score(self, view: InstanceView) -> float:
        return 1.0 / (1.0 + effective_load(view))
