"""edf: earliest deadline first."""

from __future__ import annotations

from math import inf

from maitred.contracts import SortKey
from maitred.queueing.policy import SCHEDULERS, KeyPolicy, PolicyInfo
from maitred.seq import Seq


@SCHEDULERS.register("edf")
class EarliestDeadlineFirst(KeyPolicy):
    """By deadline, those without one last, then arrival, then id. Best while all deadlines can be met; in overload it serves
    first whoever is about to be too late."""

    about = PolicyInfo(
        line="earliest deadline first, those without one last, then arrival",
        complexity="O(log n) per request",
        starves="requests without a deadline",
    )

    def key(self, seq: Seq) -> SortKey:
        request = seq.request
        return (inf if request.deadline is None else request.deadline, request.arrival, request.id)
