"""TokenBucket: a limit of a rate that lets bursts pass.

The bucket holds at most `burst` tokens and is full at first. It gains `rate` tokens per second, and each request takes
one:

    level(now) = min(burst, level(t) + (now - t) · rate)

Example: rate 2, burst 3. Three requests at 0 s take the three tokens. A fourth one at 0.2 s finds 0.4 tokens; at 0.5 s
there is one again.
"""

from __future__ import annotations

from math import ceil

from maitred.core.units import SECOND, Micros


class TokenBucket:
    """A token bucket. `now` never runs backwards."""

    __slots__ = ("_level", "_updated_at", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        """Tokens per second, more than 0."""
        self.burst = burst
        """The largest number of tokens that it holds, at least 1."""
        self._level = burst
        self._updated_at: Micros = 0

    def has_token(self, now: Micros) -> bool:
        """Return whether there is a token."""
        return self._level_at(now) >= 1

    def take_token(self, now: Micros) -> None:
        """Take a token; the caller has seen that there is one."""
        self._level = self._level_at(now) - 1
        self._updated_at = now

    def next_token_at(self, now: Micros) -> Micros:
        """Return when there is a token: `now` if there is one already."""
        missing = 1 - self._level_at(now)
        if missing <= 0:
            return now
        at = now + ceil(missing * SECOND / self.rate)
        return at if self._level_at(at) >= 1 else at + 1  # Rounding can leave the level just below 1.

    def _level_at(self, now: Micros) -> float:
        # A question leaves the level as it is. So the rounding of floats depends on admissions alone, not on how often a
        # driver asks.
        return min(self.burst, self._level + (now - self._updated_at) * self.rate / SECOND)
