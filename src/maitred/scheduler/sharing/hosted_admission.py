"""The driver of admission for the requests of gateways in other processes: every decision becomes a message to one of them.

It is told of slots and rules as the driver of one process is (`RealTimeAdmission`), and tells the scheduler's end of the link,
which asks the core. Requests come and go there, and not here. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from maitred.admission import Admission, AdmissionConfig, LoadProbe
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.decisions import Decision
from maitred.scheduler.drivers.admission import RealTimeAdmission
from maitred.wire.clock import Clock


class RequestHost(Protocol):
    """What has the requests."""

    @property
    def requests(self) -> Collection[Any]:
        """All requests that wait or hold a slot."""
        ...

    @property
    def has_orphans(self) -> bool:
        """Whether slots are held by requests of gateways that are gone."""
        ...

    def apply(self, decisions: Iterable[Decision]) -> None:
        """Tell gateways what was decided."""
        ...

    def rules_changed(self) -> None:
        """Note that other rules are in force."""
        ...

    def set_slots(self, pool: str, capacity: int, lead: Lead) -> None:
        """Set the slots of a pool."""
        ...

    def forget_pool(self, pool: str) -> None:
        """Remove a pool in which no request is."""
        ...


class HostedAdmission(RealTimeAdmission):
    """The only user of an admission core, beside the scheduler's end of the link."""

    def __init__(self, core: Admission, clock: Clock, load_probe: LoadProbe, pool_of: Callable[[str], str]) -> None:
        super().__init__(core, clock, load_probe, pool_of)
        self.load_probe, self.pool_of = load_probe, pool_of
        self.host: RequestHost | None = None
        """What has the requests; None until the scheduler is put together."""

    @property
    def leases(self) -> Collection[Any]:
        return () if self.host is None else self.host.requests

    @property
    def reads_load(self) -> bool:
        return self.core.reads_load or (self.host is not None and self.host.has_orphans)

    def resize_pool(self, pool: str, capacity: int, lead: Lead = NO_LEAD) -> None:
        if self.host is not None:
            self.host.set_slots(pool, capacity, lead)

    def forget_pool(self, pool: str) -> bool:
        if self.host is None or not self.core.is_unused(pool):
            return False
        self.host.forget_pool(pool)
        return True

    def reconfigure(self, config: AdmissionConfig) -> None:
        self._apply_decisions(self.core.reconfigure(config, self.clock.now()))
        if self.host is not None:
            self.host.rules_changed()

    def _apply_decisions(self, decisions: Iterable[Decision]) -> None:
        if self.host is not None:
            self.host.apply(decisions)
