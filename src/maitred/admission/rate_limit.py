"""A token bucket: so many at once, and so many per second on average.

The request-rate gate in front of the classes: so many requests per second, whatever becomes of them.

Who finds it shut has not arrived: he is turned away before anything else is asked of him, and counted beside the books.
"""

from __future__ import annotations

from math import ceil

from maitred.admission.config import AdmissionConfig
from maitred.admission.enums import Action, Reason
from maitred.admission.rules import SMG_RETRY_AFTER
from maitred.admission.ticket import Ticket, TicketEvent
from maitred.core.decisions import Decision
from maitred.core.units import SECOND, Micros


class TokenBucket:
    """Full at first. `now` never runs backwards."""

    __slots__ = ("_level", "_updated_at", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        """Tokens per second, more than 0."""
        self.burst = burst
        """Tokens that it holds at most, at least 1."""
        self._level = burst
        self._updated_at: Micros = 0

    def has_token(self, now: Micros) -> bool:
        """Whether there is a token."""
        return self._level_at(now) >= 1

    def take_token(self, now: Micros) -> None:
        """The caller has seen that there is one."""
        self._level = self._level_at(now) - 1
        self._updated_at = now

    def next_token_at(self, now: Micros) -> Micros:
        """When there will be a token; `now` if there is one."""
        missing = 1 - self._level_at(now)
        if missing <= 0:
            return now
        at = now + ceil(missing * SECOND / self.rate)
        return at if self._level_at(at) >= 1 else at + 1  # what rounding took

    def _level_at(self, now: Micros) -> float:
        return min(self.burst, self._level + (now - self._updated_at) * self.rate / SECOND)


class RateGate:
    """`promise`: what it tells those it turns away of when to come back; None: when it will open."""

    def __init__(self, bucket: TokenBucket, fixed_retry_after: Micros | None) -> None:
        self.bucket = bucket
        self._fixed_retry_after = fixed_retry_after

    def reject_over_rate(self, ticket: Ticket, now: Micros) -> Decision | None:
        """A newcomer is turned away; None: it has let him through."""
        if self.bucket.has_token(now):
            self.bucket.take_token(now)
            return None
        ticket.transition(TicketEvent.REJECT)
        ticket.counters.rate_limited += 1
        retry_after = self._fixed_retry_after or max(SECOND, self.bucket.next_token_at(now) - now)
        return Decision(now, ticket.id, Action.REJECT, Reason.RATE_LIMITED, None, retry_after)


def make_rate_gate(config: AdmissionConfig, previous: RateGate | None) -> RateGate | None:
    """The one that `config` asks for, with the bucket of the `former` if nothing about it changes; None: there is none."""
    rate, burst = config.legacy.rate_limit_tokens_per_second, config.legacy.burst
    if config.mode != "priority" or not rate:
        return None
    same = previous is not None and (previous.bucket.rate, previous.bucket.burst) == (rate, burst)
    bucket = previous.bucket if previous is not None and same else TokenBucket(rate, burst)
    return RateGate(bucket, SMG_RETRY_AFTER if config.flavour == "smg" else None)
