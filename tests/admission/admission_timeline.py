"""A core driven by hand: times in seconds and requests by name, decisions as short lines to compare with."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from maitred.admission import Admission, AdmissionConfig, End, Ticket
from maitred.decisions import Decision
from maitred.request import PriorityClass
from maitred.units import from_seconds, to_seconds

BULK, DEFAULT, INTERACTIVE, SYSTEM = PriorityClass


def classes(**given: dict[str, float]) -> AdmissionConfig:
    """The base of SMG's recorded scenarios: nobody reserves, 8 may wait, 20 s at most; and what is `given` per class."""
    base = {"reserved_floor": 0, "reserved_per_slot": 0.0, "queue_size": 8, "queue_timeout_secs": 20}
    entries = {c.label: {**base, **given.get(c.label, {})} for c in PriorityClass}
    return msgspec.convert({"classes": entries}, AdmissionConfig)


class Timeline:
    """One core with the pool `m`. Every input is followed by `check()`."""

    def __init__(self, slots: int, **given: dict[str, float]) -> None:
        self.core = Admission(classes(**given), {"m": slots})
        self._names: list[str] = []

    def submit(self, at: float, name: str, k: PriorityClass = DEFAULT, pool: str = "m") -> list[str]:
        self._names.append(name)
        return self._lines(self.core.submit(Ticket(len(self._names) - 1, pool, k), from_seconds(at)))

    def first_byte(self, at: float, name: str) -> bool:
        return self.core.first_byte(self._names.index(name), from_seconds(at))

    def release(self, at: float, name: str, end: End = End.DRAINED) -> list[str]:
        return self._lines(self.core.release(self._names.index(name), end, from_seconds(at)))

    def resize(self, at: float, slots: int, pool: str = "m") -> list[str]:
        return self._lines(self.core.resize(pool, slots, from_seconds(at)))

    def reconfigure(self, at: float, **given: dict[str, float]) -> list[str]:
        return self._lines(self.core.reconfigure(classes(**given), from_seconds(at)))

    def advance(self, at: float) -> list[str]:
        return self._lines(self.core.advance(from_seconds(at)))

    def next_deadline(self) -> float | None:
        due = self.core.next_deadline()
        return None if due is None else to_seconds(due)

    def reserved(self) -> dict[str, int]:
        return {c.label: view.reserved for c, view in self.core.view("m").classes.items()}

    def _lines(self, decisions: Iterable[Decision]) -> list[str]:
        self.core.check()
        return [f"{self._names[d.subject]} {d.action} {d.reason}" for d in decisions]
