"""shortest-prefill-first: by the work that the cache leaves to do."""

from __future__ import annotations

from maitred.contracts import SortKey
from maitred.queueing.cache_aware import StandingPolicy
from maitred.queueing.places import Waiter
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo


@SCHEDULERS.register("shortest-prefill-first")
class ShortestPrefillFirst(StandingPolicy):
    """By tokens to be computed, fewest first, then arrival, then order (SGLang `shortest-prefill-first`)."""

    about = PolicyInfo(
        line="who has the fewest tokens to compute, after what is cached, goes first",
        complexity="O(log n) per request, and per request whose cached prefix changes",
        starves="long prompts with little in the cache",
        cache_aware=CacheAware.YES,
    )

    def key(self, waiter: Waiter) -> SortKey:
        return (waiter.held_back, waiter.uncached, *waiter.tie)
