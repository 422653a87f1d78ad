"""no-hit-lru: prompts that nobody has cached go around in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from maitred.contracts import FleetView, InstanceView
from maitred.request import Request
from maitred.routing.policy import Reads, RouterInfo
from maitred.routing.scorers.scorer import SCORERS, BaseScorer


@SCORERS.register("no-hit-lru")
class NoHitLru(BaseScorer):
    """If an instance has any of the prompt in its prefix cache, 0.5 for all. Else `1 - rank / (n - 1)`, where those rank first
    that never got such a prompt, and then those that got one least recently (llm-d's no-hit-lru scorer, BLIS `no-hit-lru`). So
    new prefixes, which fill caches, are spread evenly."""

    about = RouterInfo(
        line="0.5 if the prompt is cached anywhere; else 1 for who got no such prompt for longest, down to 0",
        complexity="O(n log n) looks into caches",
        reads="the caches of the instances",
    )
    reads = Reads.CACHES | Reads.PROMPT

    def __init__(self) -> None:
        self._cold = False
        self._order: OrderedDict[int, None] = OrderedDict()
        """Those that got one, by index, least recently first."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        self._cold = not any(view.cached_blocks(request) for view in fleet)
        if not self._cold:
            return [0.5] * len(fleet)
        if len(fleet) == 1:
            return [1.0]
        turn = {index: turn for turn, index in enumerate(self._order)}
        ranked = sorted(range(len(fleet)), key=lambda place: turn.get(fleet[place].index, -1))
        scores = [0.0] * len(fleet)
        for rank, place in enumerate(ranked):
            scores[place] = 1.0 - rank / (len(fleet) - 1)
        return scores

    def chosen(self, request: Request, view: InstanceView) -> None:
        if self._cold:
            self._order[view.index] = None
            self._order.move_to_end(view.index)
