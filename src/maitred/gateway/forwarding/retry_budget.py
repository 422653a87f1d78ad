"""The retry budget: how many requests may be sent again, given how many there are.

Retries multiply the load just when backends fail. So they are bounded by a share of the traffic (Envoy's retry budget), with a
floor, so that a quiet gateway may retry as well. The budget is a bucket: each request brings `budget_share` of a retry, each
second `budget_floor_per_sec`, and what 10 seconds have brought is kept.

Example: a share of 0.2, a floor of 10 per second. A gateway that was idle may send 100 requests again at once. At 50 requests
per second it may send 20 again each second.
"""

from __future__ import annotations

from typing import Final

from maitred.core.units import Micros, to_seconds
from maitred.gateway.config import RetryConfig

_WINDOW_SECS: Final = 10.0
"""Seconds for which a budget that is not used is kept."""


class RetryBudget:
    """How many retries the traffic allows. In any span of time retries are at most what 10 seconds of the floor allow at its
    beginning, and what the floor and the share of the requests have brought since."""

    def __init__(self, config: RetryConfig, now: Micros) -> None:
        self._share, self._floor = config.budget_share, config.budget_floor_per_sec
        self._balance = self._floor * _WINDOW_SECS
        self._at, self._num_requests = now, 0

    def withdraw(self, num_requests: int, now: Micros) -> bool:
        """Return whether one more request may be sent again, and count it. `num_requests` have been answered so far."""
        elapsed, brought = to_seconds(now - self._at), self._share * (num_requests - self._num_requests)
        self._at, self._num_requests = now, num_requests
        limit = self._floor * _WINDOW_SECS + brought * min(1.0, _WINDOW_SECS / elapsed if elapsed else 1.0)
        grown = min(self._balance + self._floor * elapsed + brought, limit)
        self._balance = grown if elapsed >= _WINDOW_SECS else max(self._balance, grown)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
