"""A queue policy: weighted shortest job first (Smith's rule).

To try it, in this folder:

    maitred simulate --trace sample:mixed \\
        --scheduler "queue_policy:WeightedShortestFirst(interactive=8)"
"""

from __future__ import annotations

from maitred.core.contracts import SortKey
from maitred.core.request import PriorityClass
from maitred.core.sequence import SequenceState
from maitred.queueing import CacheAware, KeyPolicy, PolicyInfo


class WeightedShortestFirst(KeyPolicy):
    """Order by prompt tokens, divided by what the class of the request is worth.

    With jobs of known sizes this has the least weighted sum of completion times on one machine (Smith 1956). It starves long
    prompts of cheap classes while others keep coming: `bounded(queue_policy:WeightedShortestFirst, max_wait=20)` does not.
    """

    about = PolicyInfo(
        summary="fewest prompt tokens per weight of the class first, then arrival",
        complexity="O(log n) per request",
        starves="long prompts of classes with a small weight",
        cache_aware=CacheAware.NO,
    )

    def __init__(self, interactive: float = 4.0, bulk: float = 1.0) -> None:
        """Other classes weigh 2. Raises ValueError for weights that are not above 0."""
        if min(interactive, bulk) <= 0:
            raise ValueError(f"weights must be above 0, not {min(interactive, bulk)}")
        self._weights = {PriorityClass.INTERACTIVE: interactive, PriorityClass.BULK: bulk}

    def key(self, seq: SequenceState) -> SortKey:
        request = seq.request
        return (request.prompt_tokens / self._weights.get(request.priority_class, 2.0), request.arrival, request.id)
