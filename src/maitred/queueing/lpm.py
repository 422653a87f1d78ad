"""lpm: longest prefix match."""

from __future__ import annotations

from maitred.contracts import SortKey
from maitred.queueing.cache_aware import StandingPolicy
from maitred.queueing.places import Waiter
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo


@SCHEDULERS.register("lpm")
class LongestPrefixMatch(StandingPolicy):
    """By cached prompt tokens, most first, then arrival, then order (SGLang `lpm`, without its cut-off). Those who are held
    back go last, in the order of arrival."""

    about = PolicyInfo(
        line="who finds most of its prompt in the prefix cache goes first",
        complexity="O(log n) per request, and per request whose cached prefix changes",
        starves="requests with nothing in the cache",
        cache_aware=CacheAware.YES,
    )

    def key(self, waiter: Waiter) -> SortKey:
        return (True, 0, *waiter.tie) if waiter.held_back else (False, -waiter.matched, *waiter.tie)
