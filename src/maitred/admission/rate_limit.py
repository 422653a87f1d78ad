"""Rate limits: a token bucket, and the gate that limits the request rate in front of the classes.

The bucket holds at most `burst` tokens and is full at first. It gains `rate` tokens per second, and each request takes
one:

    level(now) = min(burst, level(t) + (now - t) · rate)

Example: rate 2, burst 3. Three requests at 0 s take the three tokens. A fourth one at 0.2 s finds 0.4 tokens; at 0.5 s
there is one again.

With classes, a request that finds the gate shut has not arrived: it is rejected before everything else, and counted
apart. Without classes, the bucket belongs to the pool, and requests wait for its tokens in the queue.
"""

from __future__ import annotations

from math import ceil

from maitred.admission.config import AdmissionConfig
from maitred.admission.enums import Action, Reason
from maitred.admission.ticket import Ticket, TicketEvent
from maitred.core.decisions import Decision
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


class RateGate:
    """The gate in front of the classes."""

    def __init__(self, bucket: TokenBucket, fixed_retry_after: Micros | None) -> None:
        self.bucket = bucket
        self._fixed_retry_after = fixed_retry_after
        """`Retry-After` of rejections, µs, or None for the time until the next token."""

    def reject_over_rate(self, ticket: Ticket, now: Micros) -> Decision | None:
        """Reject a newcomer if there is no token; else take one and return None."""
        if self.bucket.has_token(now):
            self.bucket.take_token(now)
            return None
        ticket.transition(TicketEvent.REJECT)
        ticket.counters.rate_limited += 1
        retry_after = self._fixed_retry_after or max(SECOND, self.bucket.next_token_at(now) - now)
        return Decision(now, ticket.id, Action.REJECT, Reason.RATE_LIMITED, None, retry_after)


def make_rate_gate(config: AdmissionConfig, previous: RateGate | None) -> RateGate | None:
    """Return the gate that `config` asks for, or None if it asks for none. The bucket of the `previous` gate, with its
    level, stays if neither rate nor burst changes."""
    rate, burst = config.legacy.rate_limit_tokens_per_second, config.legacy.burst
    if config.mode != "priority" or not rate:
        return None
    # A new bucket is full: if every reload made one, each would let a whole burst in.
    same = previous is not None and (previous.bucket.rate, previous.bucket.burst) == (rate, burst)
    bucket = previous.bucket if previous is not None and same else TokenBucket(rate, burst)
    return RateGate(bucket, config.preset.fixed_retry_after)
