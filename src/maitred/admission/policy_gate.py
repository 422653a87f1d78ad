"""The screen: the configured policy at work before the pools, and the books of whom it turns away."""

from __future__ import annotations

from typing import Final

from maitred.admission.config import PolicyConfig
from maitred.admission.enums import Action
from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.tenants import BudgetAccount
from maitred.admission.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.errors import ConfigError
from maitred.core.units import Micros

_REQUEST_KEYS: Final = ("tenant_budgets", "slo_priorities", "slo_targets")
"""Keys that are no policy's own."""
_POLICY_KEYS: Final = tuple(key for key in PolicyConfig.__struct_fields__ if key not in _REQUEST_KEYS)


_SHARE_USED: Final = Refusal("tenant_budget", message="this tenant has used its share of the backends")


class TenantBudgetPolicy(AdmissionPolicy):
    """Refuses the sheddable requests of tenants over their budget (BLIS `tenant_budgets`)."""

    def __init__(self, config: PolicyConfig, inner: AdmissionPolicy) -> None:
        self.reads_load = inner.reads_load
        self.total_slots = 0
        """Of all models together; kept up to date by the core."""
        self._inner = inner
        self._accounts = {tenant: BudgetAccount(share) for tenant, share in config.tenant_budgets.items()}

    def account_of(self, tenant: str) -> BudgetAccount | None:
        """Where what the tenant holds is counted, by the pools; None: it has no budget."""
        return self._accounts.get(tenant)

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        refused = self._inner.refusal(ticket, load, now)
        account = ticket.budget_account
        if refused is not None or account is None or not ticket.sheddable:
            return refused
        return _SHARE_USED if account.in_flight > account.slot_share * self.total_slots else None


class PolicyGate:
    """One policy and its budgets. Raises ConfigError for a policy that cannot be had."""

    def __init__(self, config: PolicyConfig, policy: AdmissionPolicy | None = None) -> None:
        """`policy` is the one that `config` names, if there is one already."""
        self._config = config
        self._policy = self._inner_policy = policy or _make_policy(config)
        self._budgets: TenantBudgetPolicy | None = None
        if config.tenant_budgets:
            self._policy = self._budgets = TenantBudgetPolicy(config, self._inner_policy)
        self.refusals: dict[str, Refusal] = {}
        """The latest of each reason."""
        self.is_idle = config.never_refuses
        """Whether nobody need be shown to it."""

    def reconfigured(self, config: PolicyConfig) -> PolicyGate:
        """The screen for `config`. The policy stays, with all it remembers, if nothing changes for it."""
        if any(getattr(config, key) != getattr(self._config, key) for key in _POLICY_KEYS):
            return PolicyGate(config)
        return PolicyGate(config, self._inner_policy)

    @property
    def reads_load(self) -> bool:
        return not self.is_idle and self._policy.reads_load

    def set_total_slots(self, slots: int) -> None:
        """All models together have so many slots now."""
        if self._budgets is not None:
            self._budgets.total_slots = slots

    def reject_refused(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Decision | None:
        """A newcomer is turned away; None: he goes on."""
        ticket.budget_account = self._account_of(ticket.tenant)
        refusal = self._policy.refusal(ticket, load, now)
        if refusal is None:
            return None
        ticket.transition(TicketEvent.REJECT)
        ticket.counters.arrived += 1
        ticket.counters.refused[refusal.reason] += 1
        self.refusals[refusal.reason] = refusal
        return Decision(now, ticket.id, Action.REJECT, refusal.reason, None, refusal.retry_after)

    def adopt(self, ticket: Ticket) -> None:
        """One that other rules let in. What it holds is counted where it comes to."""
        if ticket.budget_account is not None and ticket.state in SLOT_HOLDING_STATES:
            ticket.budget_account.in_flight -= 1
        ticket.budget_account = self._account_of(ticket.tenant)

    def _account_of(self, tenant: str) -> BudgetAccount | None:
        return None if self._budgets is None else self._budgets.account_of(tenant)


def _make_policy(config: PolicyConfig) -> AdmissionPolicy:
    try:
        policy = POLICIES.get(config.policy, {PolicyConfig: config})
    except ConfigError as error:
        raise ConfigError(error.problem, where=error.where or "admission.policy", hint=error.hint) from error
    written = getattr(policy, "keywords", {})
    return policy(**{name: value for name, value in config.parameters().items() if name not in written})
