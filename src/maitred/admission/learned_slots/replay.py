"""The decisions of slot controllers in the decision log, and a log run again.

A log has how each controller was made, and every reading and tick with all that it was told. A second run takes the same
decisions, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from maitred.admission.learned_slots.controller import SlotController
from maitred.admission.learned_slots.signals import EngineReading, OwnLoad, PoolDemand, SlotDecision
from maitred.core.decisions import DecisionLog
from maitred.core.units import Micros

LOG_ROOM: Final = "slots"


class _LoggedChange(msgspec.Struct, frozen=True):
    backend: int
    change: SlotDecision


class RecordedSlotController(SlotController):
    """A SlotController that writes its inputs and decisions to `log`. `backend` is the index of its engine."""

    def __init__(self, log: DecisionLog, backend: int, start: int, most: int, least: int) -> None:
        super().__init__(start, most, least)
        self._log, self._backend = log, backend
        self._opening: dict[str, int] | None = {"start": start, "most": most, "least": least}
        """What the log must know first; None once it does. A controller that is never asked leaves no line."""

    def on_reading(self, reading: EngineReading, own: OwnLoad, demand: PoolDemand, now: Micros) -> SlotDecision | None:
        decision = super().on_reading(reading, own, demand, now)
        return self._record("reading", now, decision, reading=reading, own=own, demand=demand)

    def on_tick(self, own: OwnLoad, demand: PoolDemand, now: Micros) -> SlotDecision | None:
        return self._record("tick", now, super().on_tick(own, demand, now), own=own, demand=demand)

    def forget(self, now: Micros) -> None:
        super().forget(now)
        self._record("forget", now, None)

    def _record(self, verb: str, now: Micros, decision: SlotDecision | None, **what: Any) -> SlotDecision | None:
        if self._opening is not None:
            self._log.log_input(LOG_ROOM, "open", now, backend=self._backend, **self._opening)
            self._opening = None
        self._log.log_input(LOG_ROOM, verb, now, backend=self._backend, **what)
        if decision is not None:
            self._log.log_decisions(LOG_ROOM, [_LoggedChange(self._backend, decision)])
        return decision


def replay_slots(lines: Iterable[bytes], log: DecisionLog) -> None:
    """Run the inputs of slot controllers in `lines` (as a DecisionLog writes them) again, and write a new log. Lines of other
    rooms are passed over. Raises ValueError for an input of a controller whose making the log does not have."""
    controllers: dict[int, SlotController] = {}
    for line in lines:
        entry = msgspec.json.decode(line)
        if entry["room"] != LOG_ROOM or "input" not in entry:
            continue
        backend, verb, now = entry["backend"], entry["input"], entry["at"]
        if verb == "open":
            bounds = (entry["start"], entry["most"], entry["least"])
            controllers[backend] = RecordedSlotController(log, backend, *bounds)
        elif backend not in controllers:
            raise ValueError(f"the log does not say how the slots of backend {backend} began")
        elif verb == "forget":
            controllers[backend].forget(now)
        else:
            own, demand = msgspec.convert(entry["own"], OwnLoad), msgspec.convert(entry["demand"], PoolDemand)
            if verb == "reading":
                reading = msgspec.convert(entry["reading"], EngineReading)
                controllers[backend].on_reading(reading, own, demand, now)
            else:
                controllers[backend].on_tick(own, demand, now)
