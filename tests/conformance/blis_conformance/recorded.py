"""Routers that break ties as they were broken when the case was recorded.

BLIS draws among equals by a generator of its own. The recorded choice must be among the equals; then it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from random import Random
from typing import Any

from maitred.core.contracts import InstanceView
from maitred.core.request import Request
from maitred.routing.policies import LeastLoaded, LoadMeasure, WeightedRouter
from maitred.routing.scorer_weights import ScorerWeights


class UntrueError(Exception):
    """The instance that was chosen is not among those that could have been."""


class _Recorded:
    routed_to: Mapping[int, int] = {}

    def _break_tie(self, request: Request, tied: Sequence[InstanceView]) -> InstanceView:
        chosen = self.routed_to[int(request.client_id)]
        for view in tied:
            if view.index == chosen:
                return view
        raise UntrueError(f"request {request.client_id} went to {chosen}; the best were {[view.index for view in tied]}")


class RecordedLeastLoaded(_Recorded, LeastLoaded):
    """BLIS's least-loaded with the recorded ties."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng, LoadMeasure.EFFECTIVE)


class RecordedWeighted(_Recorded, WeightedRouter):
    """Weighted scorers with the recorded ties. BLIS bounds no load."""

    def __init__(self, rng: Random, mix: ScorerWeights) -> None:
        super().__init__(rng, mix, balance_abs_threshold=inf)


_RECORDED: Mapping[str, type[Any]] = {"least-loaded": RecordedLeastLoaded, "weighted": RecordedWeighted}


@contextmanager
def breaking_ties(policy: str, routed_to: Mapping[int, int]) -> Iterator[str]:
    """How a router is called that is `policy`, ties as in `routed_to`."""
    if policy not in _RECORDED:
        yield policy
        return
    recorded = _RECORDED[policy]
    _Recorded.routed_to = routed_to
    try:
        yield f"{recorded.__module__}:{recorded.__name__}"
    finally:
        _Recorded.routed_to = {}
