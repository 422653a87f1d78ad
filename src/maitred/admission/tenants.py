"""Tenants: what those that policies limit have in flight and in the queues, over all pools.

A tenant that holds more than its share of all slots gets no more sheddable work in. It may always have urgent work.

Over another policy, which is asked first: what that refuses is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from maitred.admission.config import TenantPolicy


class TenantAccount:
    """The account of one tenant."""

    __slots__ = ("awaiting_victims", "in_flight", "max_in_flight", "max_queued", "name", "queued")

    def __init__(self, name: str, policy: TenantPolicy) -> None:
        self.name = name
        self.max_in_flight = policy.max_in_flight
        self.max_queued = policy.max_queued
        self.in_flight = 0
        self.awaiting_victims = 0
        """Preemptors of it whose victims have not left yet."""
        self.queued = 0
        """All of it that wait, those who await a victim among them."""

    @property
    def at_limit(self) -> bool:
        """It may have no more in flight."""
        return self.max_in_flight is not None and self.in_flight >= self.max_in_flight

    @property
    def at_limit_with_awaiting(self) -> bool:
        """With those slots that are kept for it, it has as many as it may."""
        return self.max_in_flight is not None and self.in_flight + self.awaiting_victims >= self.max_in_flight

    @property
    def queue_full(self) -> bool:
        """No more of it may wait."""
        return self.max_queued is not None and self.queued >= self.max_queued

    def add(self, *, holding: int, waiting: int) -> None:
        """So many more of it are here."""
        self.in_flight += holding
        self.queued += waiting


def limited_accounts(policies: Mapping[str, TenantPolicy]) -> dict[str, TenantAccount]:
    """New accounts for those tenants that have limits."""
    return {
        name: TenantAccount(name, policy)
        for name, policy in policies.items()
        if policy.max_in_flight is not None or policy.max_queued is not None
    }


class BudgetAccount:
    """What one tenant with a budget has in flight, over all pools."""

    __slots__ = ("in_flight", "slot_share")

    def __init__(self, slot_share: float) -> None:
        self.slot_share = slot_share
        self.in_flight = 0
