"""prefix-affinity: where prompts that begin like this one were sent.

The router remembers what it sent where, and asks nobody: for each instance the keys of the blocks of the prompts that went
there, the least recently sent forgotten first. That is about what is in the prefix cache there, if the cache is about as large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from maitred.contracts import FleetView, InstanceView
from maitred.kv.keys import chain_of
from maitred.request import Request
from maitred.routing.policy import Reads, RouterInfo
from maitred.routing.scorers.scorer import SCORERS, BaseScorer


@SCORERS.register("prefix-affinity")
class PrefixAffinity(BaseScorer):
    """Leading blocks of the prompt that were sent there before, as a share of its blocks (llm-d's approximate prefix scorer,
    BLIS `prefix-affinity`). A prompt of which nothing is known has none.

    `block` is in tokens, `most` is how many blocks are remembered of each instance.
    """

    about = RouterInfo(
        line="leading blocks of the prompt that were sent there before, as a share of its blocks",
        complexity="O(n + blocks)",
        reads="the prompt",
    )
    reads = Reads.PROMPT

    def __init__(self, block: int = 16, most: int = 10_000) -> None:
        """Raises ValueError for less than 1 of either."""
        if block < 1 or most < 1:
            raise ValueError(f"block and most must be at least 1, not {min(block, most)}")
        self._block, self._most = block, most
        self._sent: dict[int, OrderedDict[int, None]] = {}
        """By index of the instance; the least recently sent first."""
        self._chain: Sequence[int] = ()

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        chain = self._chain = chain_of(request, self._block)
        if not chain:
            return [0.0] * len(fleet)
        return [self._matched(view) / len(chain) for view in fleet]

    def chosen(self, request: Request, view: InstanceView) -> None:
        sent = self._sent.setdefault(view.index, OrderedDict())
        for key in self._chain:
            sent[key] = None
            sent.move_to_end(key)
            if len(sent) > self._most:
                sent.popitem(last=False)

    def _matched(self, view: InstanceView) -> int:
        sent = self._sent.get(view.index)
        return sum(1 for _ in takewhile(sent.__contains__, self._chain)) if sent else 0
