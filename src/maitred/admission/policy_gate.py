"""The gate before the pools: it asks the configured admission policy, and checks the budgets of tenants.

The policy is asked first. A request that it lets pass is refused all the same if it is sheddable and its tenant holds
more than its share of all slots (BLIS's `tenant_budgets`). Requests that are not sheddable always pass a budget.

Example: 16 slots, and a tenant with a budget of 0.25, which is 4 slots. While it holds 4, its next sheddable request
passes; while it holds 5, it is refused.
"""

from __future__ import annotations

from typing import Final

from maitred.admission.config import PolicyConfig
from maitred.admission.enums import Action
from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.ticket import Ticket, TicketEvent
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.errors import ConfigError
from maitred.core.units import Micros

_REQUEST_KEYS: Final = ("tenant_budgets", "slo_priorities", "slo_targets")
"""The keys of `PolicyConfig` that do not belong to a policy."""
_POLICY_KEYS: Final = tuple(key for key in PolicyConfig.__struct_fields__ if key not in _REQUEST_KEYS)
_BUDGET_SPENT: Final = Refusal("tenant_budget", message="this tenant has used its share of the backends")


class PolicyGate:
    """One policy, and the budgets. Raises ConfigError for a policy that is unknown or cannot be made."""

    def __init__(self, config: PolicyConfig, policy: AdmissionPolicy | None = None) -> None:
        """`policy` is the one that `config` names, if it has been made already."""
        self._config = config
        self._policy = policy or _make_policy(config)
        self.total_slots = 0
        """Slots of all models together; the core keeps it up to date."""
        self.refusals: dict[str, Refusal] = {}
        """The latest refusal of each reason."""
        self.is_open = config.never_refuses
        """Whether it never refuses a request, and need not be asked."""

    def reconfigured(self, config: PolicyConfig) -> PolicyGate:
        """Return the gate for `config`. The policy stays, with all that it remembers, if nothing changes for it."""
        if any(getattr(config, key) != getattr(self._config, key) for key in _POLICY_KEYS):
            return PolicyGate(config)
        return PolicyGate(config, self._policy)

    @property
    def reads_load(self) -> bool:
        """Whether the policy needs the load of the instances."""
        return not self.is_open and self._policy.reads_load

    def reject_refused(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Decision | None:
        """Reject a newcomer that the policy or a budget refuses; return None if it passes."""
        refusal = self._policy.refusal(ticket, load, now) or self._over_budget(ticket)
        if refusal is None:
            return None
        ticket.transition(TicketEvent.REJECT)
        ticket.counters.arrived += 1
        ticket.counters.refused[refusal.reason] += 1
        self.refusals[refusal.reason] = refusal
        return Decision(now, ticket.id, Action.REJECT, refusal.reason, None, refusal.retry_after)

    def _over_budget(self, ticket: Ticket) -> Refusal | None:
        account = ticket.tenant_account
        if account is None or account.slot_share is None or not ticket.sheddable:
            return None
        return _BUDGET_SPENT if account.in_flight > account.slot_share * self.total_slots else None


def _make_policy(config: PolicyConfig) -> AdmissionPolicy:
    try:
        policy = POLICIES.get(config.policy, {PolicyConfig: config})
    except ConfigError as error:
        raise ConfigError(error.problem, where=error.where or "admission.policy", hint=error.hint) from error
    written = getattr(policy, "keywords", {})
    return policy(**{name: value for name, value in config.parameters().items() if name not in written})
