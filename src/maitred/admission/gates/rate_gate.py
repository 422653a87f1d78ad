"""RateGate: the limit of the request rate in front of the classes.

A request that finds the gate shut has not arrived: it is rejected before everything else, and counted apart. Without classes
there is no gate: the bucket belongs to the pool, and requests wait for its tokens in the queue.
"""

from __future__ import annotations

from maitred.admission.terms.config import AdmissionConfig
from maitred.admission.terms.enums import Action, Reason
from maitred.admission.terms.ticket import Ticket, TicketEvent
from maitred.admission.waiting.token_bucket import TokenBucket
from maitred.core.decisions import Decision
from maitred.core.units import SECOND, Micros


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
        # At least a second, because `Retry-After` is in whole seconds.
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
