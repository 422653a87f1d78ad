"""queue-depth: whose wait queue is short."""

from __future__ import annotations

from maitred.contracts import InstanceView
from maitred.routing.policy import RouterInfo
from maitred.routing.scorers.scorer import SCORERS, LeastIsBest


@SCORERS.register("queue-depth")
class QueueDepth(LeastIsBest):
    """`(most - waiting) / (most - least)` (GAIE's queue scorer, BLIS `queue-depth`).

    It compares and does not measure: one request more counts as much as a thousand if nobody waits elsewhere.
    """

    about = RouterInfo(line="(most - waiting) / (most - least); 1 if all are equal", complexity="O(n)", reads="waiting")

    def count(self, view: InstanceView) -> int:
        return view.waiting
