"""aged-sjf: shortest prefill first, which nobody waits behind for ever.

    key = uncached prompt tokens - tokens_per_second * time waited

All age alike, so the order of any two stands until the cache changes for one of them: the key that is kept leaves out the
present and is `uncached + tokens_per_second * arrival`.
"""

from __future__ import annotations

from random import Random

from maitred.contracts import PrefixView, SortKey, WaitQueue
from maitred.queueing.cache_aware import StandingPolicy
from maitred.queueing.places import Waiter
from maitred.queueing.policy import SCHEDULERS, CacheAware, KeyPolicy, PolicyInfo
from maitred.seq import Seq
from maitred.units import SECOND

_HOLD_NOBODY_BACK = -1


@SCHEDULERS.register("aged-sjf")
class AgedSjf(StandingPolicy):
    """By the prompt tokens that are not in the prefix cache, less `tokens_per_second` for each second of waiting, then
    arrival, then id. Without a prefix cache by the whole prompt."""

    about = PolicyInfo(
        line="fewest uncached prompt tokens first, less tokens_per_second for each second of waiting",
        complexity="O(log n) per request, and per request whose cached prefix changes",
        starves="nobody: a long prompt waits until its age outweighs its length",
        cache_aware=CacheAware.IF_THERE,
    )

    def __init__(self, tokens_per_second: int = 1000) -> None:
        """Raises ValueError unless `tokens_per_second` is from 1 to 1e9."""
        if not 1 <= tokens_per_second <= 1_000_000_000:
            raise ValueError(f"tokens_per_second must be from 1 to 1,000,000,000, not {tokens_per_second}")
        super().__init__(check=_HOLD_NOBODY_BACK)
        self._rate = tokens_per_second

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _WholePrompts(self).queue(None, rng) if prefix is None else super().queue(prefix, rng)

    def key(self, waiter: Waiter) -> SortKey:
        return self.aged(waiter.seq, waiter.uncached)

    def aged(self, seq: Seq, uncached: int) -> SortKey:
        request = seq.request
        return (uncached * SECOND + self._rate * request.arrival, request.arrival, request.id)


class _WholePrompts(KeyPolicy):
    """The same where nothing is cached."""

    def __init__(self, policy: AgedSjf) -> None:
        self._aged = policy.aged

    def key(self, seq: Seq) -> SortKey:
        return self._aged(seq, seq.target)
