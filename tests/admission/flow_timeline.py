"""A core with flow control driven by hand: times in ms, requests by name, decisions as short lines to compare with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.core.units import from_ms, to_ms


def flow_config(keys: dict[str, Any] | None = None, **flow: Any) -> AdmissionConfig:
    """Return a configuration with `keys` of the section, and those of `flow_control`."""
    return msgspec.convert({"mode": "flow-control", "flow_control": flow, **(keys or {})}, AdmissionConfig)


class FlowTimeline:
    """One core with the pool `m` over `instances`, which hold what it admits. Every input is followed by `check()`."""

    def __init__(self, keys: dict[str, Any] | None = None, *, instances: int = 1, **flow: Any) -> None:
        self.waiting = [0] * instances
        """Requests in the wait queue of each instance, as the next loads show them."""
        self.hidden = 0
        """How many requests in flight no instance shows yet."""
        self.looks = 0
        self.log: list[bytes] = []
        self.core: Admission = Admission(flow_config(keys, **flow), {"m": 64}, self._look, DecisionLog(self.log.append))
        self._names: list[str] = []
        self._in_flight: set[str] = set()

    def submit(
        self, ms: float, name: str, slo: str = "standard", tenant: str = "", target_ms: float | None = None
    ) -> list[str]:
        self._names.append(name)
        target = None if target_ms is None else from_ms(target_ms)
        priority = SLO_PRIORITIES[slo]
        ticket = Ticket(len(self._names) - 1, "m", tenant=tenant, slo_priority=priority, slo_target=target)
        return self._lines(self.core.submit(ticket, from_ms(ms), self.load()))

    def release(self, ms: float, name: str, end: ReleaseReason = ReleaseReason.DRAINED) -> list[str]:
        self._in_flight.discard(name)
        return self._lines(self.core.release(self._names.index(name), end, from_ms(ms)))

    def advance(self, ms: float) -> list[str]:
        return self._lines(self.core.advance(from_ms(ms)))

    def first_byte(self, ms: float, name: str) -> bool:
        return self.core.confirm_first_byte(self._names.index(name), from_ms(ms))

    def decline(self, ms: float, name: str) -> list[str]:
        return self._lines(self.core.decline(self._names.index(name), from_ms(ms)))

    def reconfigure(self, ms: float, config: AdmissionConfig) -> list[str]:
        return self._lines(self.core.reconfigure(config, from_ms(ms)))

    def due(self) -> float | None:
        due = self.core.next_deadline()
        return None if due is None else to_ms(due)

    def load(self) -> FleetLoad:
        shown = max(0, len(self._in_flight) - self.hidden)
        spread = [shown // len(self.waiting) + (i < shown % len(self.waiting)) for i in range(len(self.waiting))]
        return FleetLoad(tuple(InstanceLoad(n, w) for n, w in zip(spread, self.waiting, strict=True)))

    def _look(self, pool: str, now: int) -> FleetLoad:
        assert pool == "m"
        self.looks += 1
        return self.load()

    def _lines(self, decisions: Iterable[Decision]) -> list[str]:
        self.core.check()
        lines = []
        for d in decisions:
            name = self._names[d.subject]
            if d.action == "admit":
                self._in_flight.add(name)
            about = "" if d.other is None else f" {self._names[d.other]}"
            lines.append(f"{name} {d.action} {d.reason}{about}")
        return lines
