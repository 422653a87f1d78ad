"""precise-prefix-cache: where most of the prompt is in the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.contracts import FleetView
from maitred.request import Request
from maitred.routing.policy import Reads, RouterInfo
from maitred.routing.scorers.scorer import SCORERS, BaseScorer


@SCORERS.register("precise-prefix-cache")
class PrecisePrefixCache(BaseScorer):
    """`(blocks - fewest) / (most - fewest)` of the leading blocks that an instance has, and 1 for all if they are equal
    (llm-d's precise prefix cache scorer, BLIS `precise-prefix-cache`). It asks the instances' caches, perhaps as of some time
    ago."""

    about = RouterInfo(
        line="(blocks - fewest) / (most - fewest) of leading blocks cached there; 1 if all are equal",
        complexity="O(n) looks into caches",
        reads="the caches of the instances",
    )
    reads = Reads.CACHES | Reads.PROMPT

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        counts = [view.cached_blocks(request) for view in fleet]
        most, fewest = max(counts), min(counts)
        if most == fewest:
            return [1.0] * len(counts)
        return [(count - fewest) / (most - fewest) for count in counts]
