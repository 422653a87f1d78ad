"""The screen: the configured policy at work before the pools, and the books of whom it turns away."""

from __future__ import annotations

from typing import Final

from maitred.admission.policies.config import PolicyConfig
from maitred.admission.policies.policy import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.policies.tenant_budgets import Account, TenantBudgets
from maitred.admission.ticket import HOLDING, Event, Ticket
from maitred.admission.vocabulary import Action
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.errors import ConfigError
from maitred.units import Micros

_OF_REQUESTS: Final = ("tenant_budgets", "slo_priorities", "slo_targets")
"""Keys that are no policy's own."""
_OF_POLICIES: Final = tuple(key for key in PolicyConfig.__struct_fields__ if key not in _OF_REQUESTS)


class Screen:
    """One policy and its budgets. Raises ConfigError for a policy that cannot be had."""

    def __init__(self, config: PolicyConfig, policy: AdmissionPolicy | None = None) -> None:
        """`policy` is the one that `config` names, if there is one already."""
        self._config = config
        self._policy = self._bare = policy or _made(config)
        self._budgets: TenantBudgets | None = None
        if config.tenant_budgets:
            self._policy = self._budgets = TenantBudgets(config, self._bare)
        self.refusals: dict[str, Refusal] = {}
        """The latest of each reason."""
        self.idle = config.refuses_nobody
        """Whether nobody need be shown to it."""

    def under(self, config: PolicyConfig) -> Screen:
        """The screen for `config`. The policy stays, with all it remembers, if nothing changes for it."""
        if any(getattr(config, key) != getattr(self._config, key) for key in _OF_POLICIES):
            return Screen(config)
        return Screen(config, self._bare)

    @property
    def reads_load(self) -> bool:
        return not self.idle and self._policy.reads_load

    def resize(self, slots: int) -> None:
        """All models together have so many slots now."""
        if self._budgets is not None:
            self._budgets.slots = slots

    def refuse(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Decision | None:
        """A newcomer is turned away; None: he goes on."""
        ticket.budget = self._account(ticket.tenant)
        refusal = self._policy.refusal(ticket, load, now)
        if refusal is None:
            return None
        ticket.on(Event.REJECT)
        ticket.totals.arrived += 1
        ticket.totals.refused[refusal.reason] += 1
        self.refusals[refusal.reason] = refusal
        return Decision(now, ticket.id, Action.REJECT, refusal.reason, None, refusal.retry_after)

    def adopt(self, ticket: Ticket) -> None:
        """One that other rules let in. What it holds is counted where it comes to."""
        if ticket.budget is not None and ticket.state in HOLDING:
            ticket.budget.in_flight -= 1
        ticket.budget = self._account(ticket.tenant)

    def _account(self, tenant: str) -> Account | None:
        return None if self._budgets is None else self._budgets.account(tenant)


def _made(config: PolicyConfig) -> AdmissionPolicy:
    try:
        policy = POLICIES.get(config.policy, {PolicyConfig: config})
    except ConfigError as error:
        raise ConfigError(error.what, where=error.where or "admission.policy", hint=error.hint) from error
    written = getattr(policy, "keywords", {})
    return policy(**{name: value for name, value in config.parameters().items() if name not in written})
