"""Promotions of starved requests, within bounds.

Whoever has waited longer than the threshold of its class may go before more urgent ones, or into a slot that a higher class has
reserved and leaves idle. Without a bound an old backlog would turn the order of classes upside down until it is young again. So
promotions are a share of the admissions from the queues: each of these earns `share` of a promotion, up to `burst`.

    promoted ≤ burst + share × dispatched        at any time
"""

from __future__ import annotations


class Promotions:
    """The account of one pool."""

    __slots__ = ("_credit", "burst", "dispatched", "promoted", "share")

    def __init__(self, share: float, burst: int) -> None:
        self.share = share
        self.burst = burst
        self._credit = float(burst)
        self.dispatched = 0
        """Admissions from the queues, promotions included."""
        self.promoted = 0

    @property
    def allowed(self) -> bool:
        return self._credit >= 1

    def dispatch(self) -> None:
        """One was admitted from a queue."""
        self.dispatched += 1
        self._credit = min(self.burst, self._credit + self.share)

    def promote(self) -> None:
        """It was a promotion; the caller has seen that one is allowed. To be followed by `dispatch`."""
        self.promoted += 1
        self._credit -= 1

    @property
    def within_bounds(self) -> bool:
        return self.promoted <= self.burst + self.share * self.dispatched + 1e-9
