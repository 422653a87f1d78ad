"""The driver of admission for the requests of gateways in other processes: every decision becomes a message to one of them.

It is told of slots and rules as the driver of one process is (`RealTimeAdmission`), and tells the scheduler's end of the link,
which asks the core. Requests come and go there, and not here. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from maitred.admission import Admission, AdmissionConfig, LoadProbe
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.decisions import Decision
from maitred.scheduler.drivers.admission import RealTimeAdmission
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.wire.clock import Clock


class HostedAdmission(RealTimeAdmission):
    """The only user of an admission core, beside the scheduler's end of the link."""

    def __init__(
        self,
        core: Admission,
        clock: Clock,
        load_probe: LoadProbe,
        pool_of: Callable[[str], str],
        only_pools: Callable[[], Mapping[int, str]],
    ) -> None:
        """`only_pools` returns the pool of each backend that has only one. The others as for `RealTimeAdmission`."""
        super().__init__(core, clock, load_probe, pool_of)
        self.load_probe, self.pool_of, self.only_pools = load_probe, pool_of, only_pools
        self._end: SchedulerEnd | None = None
        """None until the scheduler is put together."""
        self._flush_soon: Callable[[], object] = _ignore
        self._note_slots: Callable[[], object] = _ignore
        self.on_rules: Callable[[], object] = _ignore
        """Called when other rules are in force."""

    def join(self, end: SchedulerEnd, flush_soon: Callable[[], object], note_slots: Callable[[], object]) -> None:
        """Decide for the requests at the scheduler's end of the link. `flush_soon` has written what was said, and `note_slots`
        as well, and gateways told how many slots there are."""
        self._end, self._flush_soon, self._note_slots = end, flush_soon, note_slots

    @property
    def leases(self) -> Collection[Any]:
        return () if self._end is None else self._end.books.by_ticket.values()

    @property
    def reads_load(self) -> bool:
        return self.core.reads_load or (self._end is not None and not self._end.settling.is_settled)

    def check_link(self) -> None:
        """Raise InvariantError if the scheduler's end of the link contradicts itself, or admission."""
        if self._end is not None:
            self._end.check()

    def resize_pool(self, pool: str, capacity: int, lead: Lead = NO_LEAD) -> None:
        if self._end is not None:
            self._end.set_backends(self.only_pools())
            self._end.set_slots(pool, capacity, self.clock.now(), lead)
            self._note_slots()

    def forget_pool(self, pool: str) -> bool:
        if self._end is None or not self.core.is_unused(pool):
            return False
        self._end.forget_model(pool, self.clock.now())
        self._note_slots()
        return True

    def reconfigure(self, config: AdmissionConfig) -> None:
        self._apply_decisions(self.core.reconfigure(config, self.clock.now()))
        self.on_rules()

    def _apply_decisions(self, decisions: Iterable[Decision]) -> None:
        if self._end is not None:
            self._end.requests.apply(decisions, self.clock.now())
            self._flush_soon()


def _ignore() -> None:
    pass
