"""The request-rate gate in front of the classes: so many requests per second, whatever becomes of them.

Who finds it shut has not arrived: he is turned away before anything else is asked of him, and counted beside the books.
"""

from __future__ import annotations

from maitred.admission.bucket import TokenBucket
from maitred.admission.config import AdmissionConfig
from maitred.admission.rules import SMG_RETRY_AFTER
from maitred.admission.ticket import Event, Ticket
from maitred.admission.vocabulary import Action, Reason
from maitred.decisions import Decision
from maitred.units import SECOND, Micros


class RateGate:
    """`promise`: what it tells those it turns away of when to come back; None: when it will open."""

    def __init__(self, bucket: TokenBucket, promise: Micros | None) -> None:
        self.bucket = bucket
        self._promise = promise

    def refuse(self, ticket: Ticket, now: Micros) -> Decision | None:
        """A newcomer is turned away; None: it has let him through."""
        if self.bucket.ready(now):
            self.bucket.take(now)
            return None
        ticket.on(Event.REJECT)
        ticket.totals.rate_limited += 1
        retry_after = self._promise or max(SECOND, self.bucket.ready_at(now) - now)
        return Decision(now, ticket.id, Action.REJECT, Reason.RATE_LIMITED, None, retry_after)


def rate_gate(config: AdmissionConfig, former: RateGate | None) -> RateGate | None:
    """The one that `config` asks for, with the bucket of the `former` if nothing about it changes; None: there is none."""
    rate, burst = config.legacy.rate_limit_tokens_per_second, config.legacy.burst
    if config.mode != "priority" or not rate:
        return None
    same = former is not None and (former.bucket.rate, former.bucket.burst) == (rate, burst)
    bucket = former.bucket if former is not None and same else TokenBucket(rate, burst)
    return RateGate(bucket, SMG_RETRY_AFTER if config.flavour == "smg" else None)
