"""Gates: all that a newcomer has to pass before it asks for a slot, in order.

rate gate      is there a token of the rate in front of the classes?     else it has not arrived
policy gate    does the admission policy let it pass, and the budget of its tenant?
usage limits   is there room in the minute and in the day of its tenant? then it is reserved
"""

from __future__ import annotations

from collections.abc import Callable

from maitred.admission.gates.policy_gate import PolicyGate, Refusal
from maitred.admission.gates.rate_gate import RateGate, make_rate_gate
from maitred.admission.gates.usage_limits import UsageLimits
from maitred.admission.terms.config import AdmissionConfig
from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import Ticket
from maitred.admission.waiting.usage_window import Reservation
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.request import RequestId
from maitred.core.units import Micros


class Gates:
    """The gates of one core. Raises ConfigError for an admission policy that is unknown or cannot be made."""

    def __init__(self, config: AdmissionConfig, reserved: dict[RequestId, Reservation], total_slots: Callable[[], int]) -> None:
        """`reserved` is as in `UsageLimits`, and `total_slots` as in `PolicyGate`."""
        self.limits = UsageLimits(reserved)
        self._policy_gate = PolicyGate(config, total_slots)
        self._rate_gate: RateGate | None = None
        self.use(config, self._policy_gate)

    def policy_gate_for(self, config: AdmissionConfig) -> PolicyGate:
        """Return what `use` takes with `config`, and change nothing. Raises as the constructor."""
        return self._policy_gate.reconfigured(config)

    def use(self, config: AdmissionConfig, policy_gate: PolicyGate) -> None:
        """Go by other rules from now on. What was counted stays."""
        self._policy_gate = policy_gate
        self._rate_gate = make_rate_gate(config, self._rate_gate)
        self.limits.use(config.limits)
        self.are_open = self._rate_gate is None and policy_gate.is_open and not self.limits.is_on
        """Whether all newcomers pass, and none need be asked about."""
        self.reads_load = policy_gate.reads_load

    def reject_refused(
        self, ticket: Ticket, load: FleetLoad, now: Micros, accounts: dict[str, TenantAccount]
    ) -> Decision | None:
        """Reject a newcomer that a gate refuses; return None if it may ask for a slot. Past the rate gate it joins the account
        of its tenant, if `accounts` has one."""
        refused = None if self._rate_gate is None else self._rate_gate.reject_over_rate(ticket, now)
        if refused is not None:
            return refused
        ticket.join_account(accounts)
        refused = None if self._policy_gate.is_open else self._policy_gate.reject_refused(ticket, load, now)
        return self.reject_over_limit(ticket, now) if refused is None else refused

    def reject_over_limit(self, ticket: Ticket, now: Micros) -> Decision | None:
        """Reject a newcomer that would exceed a limit; else reserve what it needs, and return None."""
        refusal = self.limits.reserve(ticket, now) if self.limits.is_on else None
        return None if refusal is None else self._policy_gate.reject(ticket, refusal, now)

    def refusal(self, decision: Decision) -> Refusal | None:
        """Return what to tell the client of a request that was just rejected, or None if no policy or limit did."""
        return self._policy_gate.refusals.get(decision.reason)
