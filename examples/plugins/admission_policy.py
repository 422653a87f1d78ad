"""An admission policy: requests per second, for each tenant by itself.

To try it, in this folder:

    maitred simulate --trace sample:mixed \\
        --admission-policy "admission_policy:TenantRate(rate=2, burst=5)"
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil

from maitred.admission import AdmissionPolicy, Refusal, Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import SECOND, Micros

_MOST_TENANTS = 10_000


class TenantRate(AdmissionPolicy):
    """Refuses the requests of a tenant beyond `rate` per second, after a burst of `burst`; others do not notice.

    A bucket for each tenant holds at most `burst` requests and gains `rate` per second. Of more than 10,000 tenants the one
    that was quiet for longest is forgotten: its bucket is as good as full.
    """

    def __init__(self, rate: float, burst: float = 10.0) -> None:
        """Raises ValueError for rates and bursts that let nothing in."""
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate must be above 0 and burst at least 1, not {rate} and {burst}")
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, Micros]] = OrderedDict()
        """What each held when it was last asked, and when that was; the quietest tenant first."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        held, at = self._buckets.pop(ticket.tenant, (self._burst, now))
        held = min(self._burst, held + (now - at) * self._rate / SECOND)
        self._buckets[ticket.tenant] = (held - 1 if held >= 1 else held, now)
        if len(self._buckets) > _MOST_TENANTS:
            self._buckets.popitem(last=False)
        if held >= 1:
            return None
        message = f"more than {self._rate:g} requests per second"
        return Refusal("tenant_rate", 429, message, retry_after=ceil((1 - held) * SECOND / self._rate))
