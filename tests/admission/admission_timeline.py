"""A core driven by hand: times in seconds, requests by name, decisions as short lines to compare with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from maitred.admission import Admission, AdmissionConfig, ClassView, ReleaseReason, Ticket
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.decisions import Decision
from maitred.core.request import PriorityClass
from maitred.core.units import from_seconds, to_seconds

BULK, DEFAULT, INTERACTIVE, SYSTEM = PriorityClass


BASE = {
    "reserved_floor": 0,
    "reserved_per_slot": 0.0,
    "queue_size": 8,
    "queue_timeout_secs": 20,
    "starvation_threshold_secs": 600,
}


def classes(said: dict[str, Any] | None = None, **given: dict[str, float]) -> AdmissionConfig:
    """Return the base of SMG's recorded scenarios: no reservations, 8 may wait, 20 s at most, system and interactive may
    preempt, and victims are rejected. `given` changes classes, and `said` other keys of the section."""
    entries = {c.label: {**BASE, "can_preempt": c >= INTERACTIVE, **given.get(c.label, {})} for c in PriorityClass}
    return msgspec.convert({"mode": "priority", "on_preempt": "reject", "classes": entries, **(said or {})}, AdmissionConfig)


class Timeline:
    """One core with the pool `m`. Every input is followed by `check()`."""

    def __init__(self, slots: int, said: dict[str, Any] | None = None, **given: dict[str, float]) -> None:
        self.core = Admission(classes(said, **given), {"m": slots})
        self._names: list[str] = []
        self.last: list[Decision] = []
        """The decisions on the last input."""

    def submit(
        self,
        at: float,
        name: str,
        k: PriorityClass = DEFAULT,
        pool: str = "m",
        tenant: str = "",
        cost: int = 1,
        sequences: int = 1,
    ) -> list[str]:
        self._names.append(name)
        ticket = Ticket(len(self._names) - 1, pool, k, tenant, cost, sequences=sequences)
        return self._lines(self.core.submit(ticket, from_seconds(at)))

    def first_byte(self, at: float, name: str) -> bool:
        return self.core.confirm_first_byte(self._names.index(name), from_seconds(at))

    def decline(self, at: float, name: str) -> list[str]:
        return self._lines(self.core.decline(self._names.index(name), from_seconds(at)))

    def release(self, at: float, name: str, end: ReleaseReason = ReleaseReason.DRAINED) -> list[str]:
        return self._lines(self.core.release(self._names.index(name), end, from_seconds(at)))

    def strand(self, at: float, name: str, *, stranded: bool = True) -> list[str]:
        return self._lines(self.core.set_stranded(self._names.index(name), stranded=stranded, now=from_seconds(at)))

    def leave_backend(self, at: float, name: str) -> list[str]:
        return self._lines(self.core.leave_backend(self._names.index(name), from_seconds(at)))

    def resize(self, at: float, slots: int, pool: str = "m", lead: Lead = NO_LEAD) -> list[str]:
        return self._lines(self.core.resize(pool, slots, from_seconds(at), lead))

    def reconfigure(self, at: float, said: dict[str, Any] | None = None, **given: dict[str, float]) -> list[str]:
        return self._lines(self.core.reconfigure(classes(said, **given), from_seconds(at)))

    def advance(self, at: float) -> list[str]:
        return self._lines(self.core.advance(from_seconds(at)))

    def next_deadline(self) -> float | None:
        due = self.core.next_deadline()
        return None if due is None else to_seconds(due)

    def reserved(self) -> dict[str, int]:
        return {c.label: view.reserved for c, view in self.core.view("m").classes.items()}

    def of(self, k: PriorityClass, pool: str = "m") -> ClassView:
        return self.core.view(pool).classes[k]

    def _lines(self, decisions: Iterable[Decision]) -> list[str]:
        self.core.check()
        self.last = list(decisions)
        return [self._line(d) for d in self.last]

    def _line(self, d: Decision) -> str:
        about = "" if d.other is None else f" {self._names[d.other]}"
        return f"{self._names[d.subject]} {d.action} {d.reason}{about}"
