"""A scorer: room for the prompt in the KV memory.

To try it, in this folder:

    maitred simulate --trace sample:mixed --num-instances 4 --routing-policy weighted \\
        --routing-scorers "scorer:KvHeadroom(knee=0.8):2, queue-depth:1"
"""

from __future__ import annotations

from maitred.core.contracts import InstanceView
from maitred.routing import RouterInfo, Signals, ViewScorer


class KvHeadroom(ViewScorer):
    """1 up to the knee, then down to 0 where all KV blocks are used: half full is as good as empty, nearly full is bad.

    Beyond the knee an instance is about to preempt, which costs it all the tokens that it computed for its victims.
    """

    about = RouterInfo(summary="1 up to the knee, down to 0 at full KV memory", complexity="O(n)", reads="KV usage")
    signals = Signals.LOAD

    def __init__(self, knee: float = 0.7) -> None:
        """Raises ValueError for a knee that is not a share below 1."""
        if not 0 <= knee < 1:
            raise ValueError(f"knee must be from 0 to below 1, not {knee}")
        self._knee = knee

    def score(self, view: InstanceView) -> float:
        if view.kv_usage is None:
            return 0.5  # It is not known, and that is no sign of an empty memory.
        return min(1.0, (1.0 - view.kv_usage) / (1.0 - self._knee))
