"""sjf: shortest job first, by prompt length."""

from __future__ import annotations

from maitred.contracts import SortKey
from maitred.queueing.policy import SCHEDULERS, KeyPolicy, PolicyInfo
from maitred.seq import Seq


@SCHEDULERS.register("sjf")
class ShortestJobFirst(KeyPolicy):
    """By prompt length, then arrival, then id (BLIS `sjf`). Long prompts starve under load."""

    about = PolicyInfo(
        line="shortest prompt first, then arrival",
        complexity="O(log n) per request",
        starves="long prompts; aged-sjf does not",
    )

    def key(self, seq: Seq) -> SortKey:
        return (seq.request.prompt_tokens, seq.request.arrival, seq.request.id)
