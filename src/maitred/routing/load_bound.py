"""How much busier an instance may be than the others before the prefix or the session that it holds is left.

A prefix that is found saves a prefill, and a queue costs the work of all that wait in it. So an affinity holds up to a bound,
beyond which no score outweighs the load. An instance is *overloaded*, compared with a reference, if

    in_flight - reference > abs_threshold    and    in_flight > rel_threshold * reference

which is one limit: the larger of `reference + abs_threshold` and `rel_threshold * reference`. Both must hold: an engine runs
several requests at once, so a few more are no queue; and where much is in flight everywhere, a small share more is none
either. The reference is one of two:

    the fewest in flight of all that may be chosen    cache-aware, session-affinity, weighted (SMG's `cache_aware`)
    the mean, with the request that is to be placed   prefix-hash, consistent-hashing (consistent hashing with bounded loads:
                                                      Mirrokni, Thorup and Zadimoghaddam, 2018; SMG's `prefix_hash`)

SMG asks this of the busiest instance, and if it is overloaded, no request follows a prefix. Here it is asked of the instance
that is preferred, so those that prefer another one stay with it.

Requests in flight are the measure, because they are known of every instance and never stale.

Example: with thresholds of 4 and 1.5 and an idle instance, one with 4 in flight keeps its prefix, and one with 5 is left. If
the fewest are 20, an instance is left from 31 on: 28 are 8 more, but not 1.5 times as many.
"""

from __future__ import annotations

from math import inf, isnan
from typing import Final

import msgspec

ABS_THRESHOLD: Final = 4.0
"""Requests in flight beyond the fewest that are no queue yet. SMG has 64, for engines that run 256 and more: of engines that
run 8, one would have a queue of 56 beside an idle one."""
REL_THRESHOLD: Final = 1.5
"""Multiple of the fewest in flight that is no imbalance yet (SMG's)."""
MEAN_ABS_THRESHOLD: Final = 2.0
"""Requests in flight beyond the mean that are no queue yet: of two instances, one that is 2 beyond the mean is 4 beyond the
other."""
LOAD_FACTOR: Final = 1.25
"""Multiple of the mean that is no imbalance yet (SMG's)."""


class LoadBound(msgspec.Struct, frozen=True):
    """The bound. Thresholds of infinity are never passed. Raises ValueError for a threshold that is negative or no number."""

    abs_threshold: float = ABS_THRESHOLD
    """Requests in flight beyond the reference from which on an instance may be overloaded."""
    rel_threshold: float = REL_THRESHOLD
    """Multiple of the reference from which on an instance may be overloaded."""

    def __post_init__(self) -> None:
        for threshold in (self.abs_threshold, self.rel_threshold):
            if isnan(threshold) or threshold < 0:
                raise ValueError(f"a threshold of load must be at least 0, not {threshold:g}")

    def limit(self, reference: float) -> float:
        """Return the requests in flight beyond which an instance is overloaded, compared with `reference`. It grows with that,
        so an instance that is within `limit(0)` need not be compared with any other."""
        if self.rel_threshold == inf:  # and not inf * 0, which is no number
            return inf
        return max(reference + self.abs_threshold, self.rel_threshold * reference)
