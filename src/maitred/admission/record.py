"""The same core, writing down what it was told and what it decided; and a log run again.

A log holds everything a core needs: how it was made, each input, and what it saw when it looked at the instances (before the
input that made it look). Run again, the decisions come out the same, byte for byte. An `advance` that decided nothing, and
looked at nothing, is left out: it changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.admission.config import AdmissionConfig
from maitred.admission.core import NO_LOAD, Admission, no_look
from maitred.admission.pool import Look
from maitred.admission.ticket import Ticket
from maitred.admission.vocabulary import End
from maitred.contracts import FleetLoad
from maitred.decisions import Decision, DecisionLog
from maitred.request import PriorityClass, RequestId
from maitred.units import Micros

ROOM: Final = "admission"
_SAID: Final = ("id", "pool", "tenant", "cost", "prompt_tokens", "slo_priority", "slo_target")
"""What a ticket says in the log, beside its class."""


class RecordedAdmission(Admission):
    """An Admission that writes its inputs and decisions to `log`."""

    def __init__(
        self,
        config: AdmissionConfig,
        pools: Mapping[str, int],
        log: DecisionLog,
        look: Look = no_look,
        now: Micros = 0,
    ) -> None:
        self._log = log
        self._looked = False
        self._look_outside = look
        log.told(ROOM, "open", now, config=config, pools=dict(pools))
        super().__init__(config, pools, self._look_and_write)

    def _look_and_write(self, pool: str, now: Micros) -> FleetLoad:
        load = self._look_outside(pool, now)
        self._looked = True
        self._log.told(ROOM, "look", now, pool=pool, load=load)
        return load

    def _write(self, verb: str, now: Micros, decisions: Sequence[Decision], **what: Any) -> Sequence[Decision]:
        self._log.told(ROOM, verb, now, **what)
        self._log.decided(ROOM, decisions)
        return decisions

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad = NO_LOAD) -> Sequence[Decision]:
        decisions = super().submit(ticket, now, load)
        what = {name: getattr(ticket, name) for name in _SAID}
        return self._write("submit", now, decisions, **what, **{"class": ticket.priority_class.label}, load=load)

    def first_byte(self, request_id: RequestId, now: Micros) -> bool:
        self._write("first_byte", now, (), id=request_id)
        return super().first_byte(request_id, now)

    def release(self, request_id: RequestId, end: End, now: Micros) -> Sequence[Decision]:
        return self._write("release", now, super().release(request_id, end, now), id=request_id, end=end)

    def resize(self, pool: str, capacity: int, now: Micros) -> Sequence[Decision]:
        return self._write("resize", now, super().resize(pool, capacity, now), pool=pool, capacity=capacity)

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        return self._write("reconfigure", now, super().reconfigure(config, now), config=config)

    def advance(self, now: Micros) -> Sequence[Decision]:
        self._looked = False
        decisions = super().advance(now)
        return self._write("advance", now, decisions) if decisions or self._looked else decisions


def replay(lines: Iterable[bytes], log: DecisionLog) -> None:
    """Run the inputs of admission in `lines` (as a DecisionLog writes them) again, writing a new log. Decisions and other
    rooms' lines are skipped. Raises ValueError if the inputs do not begin with `open`, or name a class that is none."""
    core: RecordedAdmission | None = None
    seen: deque[FleetLoad] = deque()
    for line in lines:
        entry = msgspec.json.decode(line)
        if entry["room"] != ROOM or "input" not in entry:
            continue
        if entry["input"] == "open":
            core = RecordedAdmission(_config(entry), entry["pools"], log, lambda pool, now: seen.popleft(), entry["at"])
        elif entry["input"] == "look":
            seen.append(msgspec.convert(entry["load"], FleetLoad))
        elif core is None:
            raise ValueError("the log does not say how this core was made")
        else:
            _VERBS[entry["input"]](core, entry)


def _config(entry: dict[str, Any]) -> AdmissionConfig:
    return msgspec.convert(entry["config"], AdmissionConfig)


def _ticket(entry: dict[str, Any]) -> Ticket:
    priority_class = PriorityClass.of(entry["class"])
    if priority_class is None:
        raise ValueError(f"the log speaks of a class {entry['class']!r}, and there is none")
    return Ticket(**{name: entry[name] for name in _SAID}, priority_class=priority_class)


_VERBS: Final[Mapping[str, Callable[[RecordedAdmission, dict[str, Any]], object]]] = {
    "submit": lambda core, e: core.submit(_ticket(e), e["at"], msgspec.convert(e["load"], FleetLoad)),
    "first_byte": lambda core, e: core.first_byte(e["id"], e["at"]),
    "release": lambda core, e: core.release(e["id"], End(e["end"]), e["at"]),
    "resize": lambda core, e: core.resize(e["pool"], e["capacity"], e["at"]),
    "reconfigure": lambda core, e: core.reconfigure(_config(e), e["at"]),
    "advance": lambda core, e: core.advance(e["at"]),
}
