"""Promotions of starved requests, within bounds.

Whoever has waited longer than the threshold of its class may go before more urgent ones, or into a slot that a higher class has
reserved and leaves idle. Without a bound an old backlog would turn the order of classes upside down until it is young again. So
promotions are a share of the admissions from the queues: each of these earns `share` of a promotion, up to `burst`.

    promoted ≤ burst + share × dispatched        at any time
"""

from __future__ import annotations

from typing import Final

_WHOLE: Final = 1_000_000
"""One promotion, in the units of the account. Whole numbers: ten times 0.1 is less than 1 in floats."""


class Promotions:
    """The account of one pool."""

    __slots__ = ("_burst", "_credit", "_share", "dispatched", "promoted")

    def __init__(self, share: float, burst: int) -> None:
        self._share = round(share * _WHOLE)
        self._burst = burst * _WHOLE
        self._credit = self._burst
        self.dispatched = 0
        """Admissions from the queues, promotions included."""
        self.promoted = 0

    @property
    def allowed(self) -> bool:
        return self._credit >= _WHOLE

    def dispatch(self) -> None:
        """One was admitted from a queue."""
        self.dispatched += 1
        self._credit = min(self._burst, self._credit + self._share)

    def promote(self) -> None:
        """It was a promotion; the caller has seen that one is allowed. To be followed by `dispatch`."""
        self.promoted += 1
        self._credit -= _WHOLE

    @property
    def within_bounds(self) -> bool:
        return self.promoted * _WHOLE <= self._burst + self._share * self.dispatched
