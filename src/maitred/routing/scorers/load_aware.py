"""load-aware: whose wait queue is short, as an absolute number."""

from __future__ import annotations

from typing import Final

from maitred.contracts import InstanceView
from maitred.routing.policy import RouterInfo
from maitred.routing.scorers.scorer import SCORERS, ViewScorer

_FULL: Final = 128
"""Waiting requests from which on the score is 0."""


@SCORERS.register("load-aware")
class LoadAware(ViewScorer):
    """`0.5 * (1 - min(waiting, 128) / 128)` (llm-d's load-aware scorer, BLIS `load-aware`). At most 0.5, as there."""

    about = RouterInfo(line="0.5 * (1 - min(waiting, 128) / 128)", complexity="O(n)", reads="waiting")

    def score(self, view: InstanceView) -> float:
        return 0.5 * (1.0 - min(view.waiting, _FULL) / _FULL)
