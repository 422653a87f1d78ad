"""Tenants: what those that policies limit have in flight and in the queues, over all pools."""

from __future__ import annotations

from collections.abc import Mapping

from maitred.admission.config import TenantPolicy


class Tenant:
    """The account of one tenant."""

    __slots__ = ("awaiting", "in_flight", "max_in_flight", "max_queued", "name", "queued")

    def __init__(self, name: str, policy: TenantPolicy) -> None:
        self.name = name
        self.max_in_flight = policy.max_in_flight
        self.max_queued = policy.max_queued
        self.in_flight = 0
        self.awaiting = 0
        """Preemptors of it whose victims have not left yet."""
        self.queued = 0
        """All of it that wait, those who await a victim among them."""

    @property
    def at_limit(self) -> bool:
        """It may have no more in flight."""
        return self.max_in_flight is not None and self.in_flight >= self.max_in_flight

    @property
    def spoken_for(self) -> bool:
        """With those slots that are kept for it, it has as many as it may."""
        return self.max_in_flight is not None and self.in_flight + self.awaiting >= self.max_in_flight

    @property
    def queue_full(self) -> bool:
        """No more of it may wait."""
        return self.max_queued is not None and self.queued >= self.max_queued

    def count(self, *, holding: int, waiting: int) -> None:
        """So many more of it are here."""
        self.in_flight += holding
        self.queued += waiting


def limited(policies: Mapping[str, TenantPolicy]) -> dict[str, Tenant]:
    """New accounts for those tenants that have limits."""
    return {
        name: Tenant(name, policy)
        for name, policy in policies.items()
        if policy.max_in_flight is not None or policy.max_queued is not None
    }
