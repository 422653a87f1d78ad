"""Admission policies: what one is, their registry, and the gate that asks the configured one.

A policy stands before the pools, in every mode. It refuses a request or lets it pass, and a request that passes goes on
to the slots, queues or flow control of the mode. A module with a policy that is added to this package is found by itself;
those that come with maitred are in `policies`.

The gate asks the policy first. A request that it lets pass is refused all the same if it is sheddable and its tenant
holds more than its share of all slots (BLIS's `tenant_budgets`). Requests that are not sheddable always pass a budget.

Example: 16 slots, and a tenant with a budget of 0.25, which is 4 slots. While it holds 4, its next sheddable request
passes; while it holds 5, it is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import msgspec

from maitred.admission.terms.enums import Action, Reason
from maitred.admission.terms.limits import LimitStatus
from maitred.admission.terms.policy_config import PolicyConfig
from maitred.admission.terms.ticket import Ticket, TicketEvent
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.errors import ConfigError
from maitred.core.registry import Registry
from maitred.core.units import Micros

_RESERVED_REASONS: Final = frozenset(Reason) - {Reason.POLICY, Reason.SATURATED}
"""Reasons that a policy may not give, because admission itself gives them. `saturated` is BLIS's word for both."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a request may not enter, and the answer to its client. Raises ValueError for what HTTP or metrics cannot express."""

    reason: str = Reason.POLICY
    """In lower case with underscores. It appears in decisions and metrics, and after `admission_` as the error code."""
    status: int = 429
    """The HTTP status, from 400 to 599."""
    message: str = "the admission policy refused this request"
    retry_after: Micros | None = None
    """The time after which the request should be sent again, µs, or None if it is not known."""
    is_final: bool = False
    """Whether the request would be refused at any time: then the answer has no `Retry-After`."""
    limits: LimitStatus | None = None
    """The limit of requests or tokens that it would exceed (`usage_limits`), or None if another rule refuses it."""

    def __post_init__(self) -> None:
        if not (self.reason.isidentifier() and self.reason.islower()):
            raise ValueError(f"the reason of a refusal must be like too_many_files, not {self.reason!r}")
        if self.reason in _RESERVED_REASONS:
            raise ValueError(f"{self.reason} is a reason of admission itself: choose another one")
        if not 400 <= self.status <= 599:
            raise ValueError(f"the status of a refusal must be from 400 to 599, not {self.status}")


class AdmissionPolicy(ABC):
    """Refuses requests, or lets them pass. One object serves all pools. The parameters of the constructor are those
    that users write; one annotated `PolicyConfig` gets the configuration."""

    reads_load: bool = False
    """Whether `refusal` reads `load`, which costs the driver time in proportion to the instances; else `load` is empty."""

    @abstractmethod
    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        """Return why `ticket` is refused, or None if it passes. Called once for each request, with `now` never running
        backwards. `load` is that of the instances that could serve the request."""


POLICIES: Registry[AdmissionPolicy] = Registry(
    "admission policy",
    AdmissionPolicy,
    group="maitred.admission_policies",
    packages=["maitred.admission.gates"],
    methods=["refusal"],
    flag="--admission-policy",
    defaults={PolicyConfig: PolicyConfig()},
)


_REQUEST_KEYS: Final = ("tenant_budgets", "slo_priorities", "slo_targets")
"""The keys of `PolicyConfig` that do not belong to a policy."""
_POLICY_KEYS: Final = tuple(key for key in PolicyConfig.__struct_fields__ if key not in _REQUEST_KEYS)
_BUDGET_SPENT: Final = Refusal("tenant_budget", message="this tenant has used its share of the backends")


class PolicyGate:
    """One policy, and the budgets. Raises ConfigError for a policy that is unknown or cannot be made."""

    def __init__(self, config: PolicyConfig, total_slots: Callable[[], int], policy: AdmissionPolicy | None = None) -> None:
        """`total_slots` returns the slots of all models together. `policy` is the one that `config` names, if it has been made
        already."""
        self._config, self._total_slots = config, total_slots
        self._policy = policy or _make_policy(config)
        self.refusals: dict[str, Refusal] = {}
        """The latest refusal of each reason."""
        self.is_open = config.never_refuses
        """Whether it never refuses a request, and need not be asked."""

    def reconfigured(self, config: PolicyConfig) -> PolicyGate:
        """Return the gate for `config`. The policy stays, with all that it remembers, if nothing changes for it."""
        if any(getattr(config, key) != getattr(self._config, key) for key in _POLICY_KEYS):
            return PolicyGate(config, self._total_slots)
        return PolicyGate(config, self._total_slots, self._policy)

    @property
    def reads_load(self) -> bool:
        """Whether the policy needs the load of the instances."""
        return not self.is_open and self._policy.reads_load

    def reject_refused(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Decision | None:
        """Reject a newcomer that the policy or a budget refuses; return None if it passes."""
        refusal = self._policy.refusal(ticket, load, now) or self._over_budget(ticket)
        return None if refusal is None else self.reject(ticket, refusal, now)

    def reject(self, ticket: Ticket, refusal: Refusal, now: Micros) -> Decision:
        """Reject a newcomer with these words."""
        ticket.transition(TicketEvent.REJECT)
        ticket.counters.arrived += 1
        ticket.counters.refused[refusal.reason] += 1
        self.refusals[refusal.reason] = refusal
        return Decision(now, ticket.id, Action.REJECT, refusal.reason, None, refusal.retry_after)

    def _over_budget(self, ticket: Ticket) -> Refusal | None:
        account = ticket.tenant_account
        if account is None or account.slot_share is None or not ticket.sheddable:
            return None
        return _BUDGET_SPENT if account.in_flight > account.slot_share * self._total_slots() else None


def _make_policy(config: PolicyConfig) -> AdmissionPolicy:
    try:
        policy = POLICIES.get(config.policy, {PolicyConfig: config})
    except ConfigError as error:
        raise ConfigError(error.problem, where=error.where or "admission.policy", hint=error.hint) from error
    written = getattr(policy, "keywords", {})
    return policy(**{name: value for name, value in config.parameters().items() if name not in written})
