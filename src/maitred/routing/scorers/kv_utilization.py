"""kv-utilization: whose KV memory is free."""

from __future__ import annotations

from maitred.contracts import InstanceView
from maitred.routing.policy import RouterInfo
from maitred.routing.scorers.scorer import SCORERS, ViewScorer


@SCORERS.register("kv-utilization")
class KvUtilization(ViewScorer):
    """`1 - kv_usage` (llm-d's kv-cache-utilization scorer, BLIS `kv-utilization`)."""

    about = RouterInfo(line="1 - used share of the KV blocks", complexity="O(n)", reads="KV usage")

    def score(self, view: InstanceView) -> float:
        return 1.0 - view.kv_usage
