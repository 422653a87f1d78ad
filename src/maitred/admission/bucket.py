"""A token bucket: so many at once, and so many per second on average."""

from __future__ import annotations

from math import ceil

from maitred.units import SECOND, Micros


class TokenBucket:
    """Full at first. `now` never runs backwards."""

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        """Tokens per second, more than 0."""
        self.burst = burst
        """Tokens that it holds at most, at least 1."""
        self._level = burst
        self._at: Micros = 0

    def ready(self, now: Micros) -> bool:
        """Whether there is a token."""
        return self._filled(now) >= 1

    def take(self, now: Micros) -> None:
        """The caller has seen that there is one."""
        self._level = self._filled(now) - 1
        self._at = now

    def ready_at(self, now: Micros) -> Micros:
        """When there will be a token; `now` if there is one."""
        missing = 1 - self._filled(now)
        if missing <= 0:
            return now
        at = now + ceil(missing * SECOND / self.rate)
        return at if self._filled(at) >= 1 else at + 1  # what rounding took

    def _filled(self, now: Micros) -> float:
        return min(self.burst, self._level + (now - self._at) * self.rate / SECOND)
