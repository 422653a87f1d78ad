"""lof: longest output first, by what the client allows."""

from __future__ import annotations

from math import inf

from maitred.contracts import SortKey
from maitred.queueing.policy import SCHEDULERS, KeyPolicy, PolicyInfo
from maitred.seq import Seq


@SCHEDULERS.register("lof")
class LongestOutputFirst(KeyPolicy):
    """By `max_output_tokens`, the largest first and no limit before all, then arrival, then id (SGLang `lof`)."""

    about = PolicyInfo(
        line="largest max_output_tokens first, then arrival: long answers start early, so that a batch job ends early",
        complexity="O(log n) per request",
        starves="short answers",
    )

    def key(self, seq: Seq) -> SortKey:
        request = seq.request
        allowed = inf if request.max_output_tokens is None else request.max_output_tokens
        return (-allowed, request.arrival, request.id)
