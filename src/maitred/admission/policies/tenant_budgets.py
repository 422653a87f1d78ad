"""A tenant that holds more than its share of all slots gets no more sheddable work in. It may always have urgent work.

Over another policy, which is asked first: what that refuses is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.admission.policies.config import PolicyConfig
from maitred.admission.policies.policy import AdmissionPolicy, Refusal
from maitred.contracts import FleetLoad
from maitred.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


_SHARE_USED: Final = Refusal("tenant_budget", message="this tenant has used its share of the backends")


class Account:
    """What one tenant with a budget has in flight, over all pools."""

    __slots__ = ("in_flight", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self.in_flight = 0


class TenantBudgets(AdmissionPolicy):
    """Refuses the sheddable requests of tenants over their budget (BLIS `tenant_budgets`)."""

    def __init__(self, config: PolicyConfig, inner: AdmissionPolicy) -> None:
        self.reads_load = inner.reads_load
        self.slots = 0
        """Of all models together; kept up to date by the core."""
        self._inner = inner
        self._accounts = {tenant: Account(share) for tenant, share in config.tenant_budgets.items()}

    def account(self, tenant: str) -> Account | None:
        """Where what the tenant holds is counted, by the pools; None: it has no budget."""
        return self._accounts.get(tenant)

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        refused = self._inner.refusal(ticket, load, now)
        account = ticket.budget
        if refused is not None or account is None or not ticket.sheddable:
            return refused
        return _SHARE_USED if account.in_flight > account.share * self.slots else None
