"""Replay: a core that writes its inputs and decisions to a log, and a function that runs such a log again.

A log has everything on which decisions depend: how the core was created, each input, and each load of instances that the
core read, which precedes the input that made it read. A second run takes the same decisions, byte for byte. An `advance`
that decided nothing and read nothing is left out, because it changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.admission.config import AdmissionConfig
from maitred.admission.core import EMPTY_LOAD, Admission, no_load
from maitred.admission.enums import ReleaseReason
from maitred.admission.pool import LoadProbe
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros

LOG_ROOM: Final = "admission"
_LOGGED_TICKET_FIELDS: Final = ("id", "pool", "tenant", "cost", "prompt_tokens", "slo_priority", "slo_target")
"""The fields of a ticket that the log has, beside its class."""


class HeadroomChange(msgspec.Struct, frozen=True):
    """A line of the log: with `reserve: adaptive` another number of slots is kept free for a class."""

    at: Micros
    pool: str
    priority_class: str
    slots: int
    before: int


class RecordedAdmission(Admission):
    """An Admission that writes its inputs and decisions to `log`."""

    def __init__(
        self,
        config: AdmissionConfig,
        pools: Mapping[str, int],
        log: DecisionLog,
        load_probe: LoadProbe = no_load,
        now: Micros = 0,
    ) -> None:
        self._log = log
        self._headroom: dict[str, list[int]] = {}
        """By pool, what the log says of it."""
        self._has_probed = False
        self._inner_probe = load_probe
        log.log_input(LOG_ROOM, "open", now, config=config, pools=dict(pools))
        super().__init__(config, pools, self._probe_and_record)

    def _probe_and_record(self, pool: str, now: Micros) -> FleetLoad:
        load = self._inner_probe(pool, now)
        self._has_probed = True
        self._log.log_input(LOG_ROOM, "look", now, pool=pool, load=load)
        return load

    def _record(self, verb: str, now: Micros, decisions: Sequence[Decision], **what: Any) -> Sequence[Decision]:
        self._log.log_input(LOG_ROOM, verb, now, **what)
        self._log.log_decisions(LOG_ROOM, decisions)
        if self.config.adapts_reservations:
            for change in self._headroom_changes(now):
                self._log.log_change(LOG_ROOM, change)
        return decisions

    def _headroom_changes(self, now: Micros) -> Iterator[HeadroomChange]:
        """Yield what has changed since the last input."""
        for pool, slots in self._pools.headroom().items():
            before = self._headroom.get(pool, [0] * len(slots))
            self._headroom[pool] = slots
            for c in PriorityClass:
                if slots[c] != before[c]:
                    yield HeadroomChange(now, pool, c.label, slots[c], before[c])

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad = EMPTY_LOAD) -> Sequence[Decision]:
        decisions = super().submit(ticket, now, load)
        what = {name: getattr(ticket, name) for name in _LOGGED_TICKET_FIELDS}
        return self._record("submit", now, decisions, **what, **{"class": ticket.priority_class.label}, load=load)

    def confirm_first_byte(self, request_id: RequestId, now: Micros) -> bool:
        self._record("first_byte", now, (), id=request_id)
        return super().confirm_first_byte(request_id, now)

    def release(self, request_id: RequestId, release_reason: ReleaseReason, now: Micros) -> Sequence[Decision]:
        return self._record("release", now, super().release(request_id, release_reason, now), id=request_id, end=release_reason)

    def set_stranded(self, request_id: RequestId, *, stranded: bool, now: Micros) -> Sequence[Decision]:
        decisions = super().set_stranded(request_id, stranded=stranded, now=now)
        return self._record("strand", now, decisions, id=request_id, stranded=stranded)

    def resize(self, pool: str, capacity: int, now: Micros) -> Sequence[Decision]:
        return self._record("resize", now, super().resize(pool, capacity, now), pool=pool, capacity=capacity)

    def forget(self, pool: str, now: Micros) -> Sequence[Decision]:
        return self._record("forget", now, super().forget(pool, now), pool=pool)

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        return self._record("reconfigure", now, super().reconfigure(config, now), config=config)

    def advance(self, now: Micros) -> Sequence[Decision]:
        self._has_probed = False
        decisions = super().advance(now)
        return self._record("advance", now, decisions) if decisions or self._has_probed else decisions


def replay(lines: Iterable[bytes], log: DecisionLog) -> None:
    """Run the inputs of admission in `lines` (as a DecisionLog writes them) again, and write a new log. Decisions, and lines of
    other packages, are skipped. Raises ValueError if the inputs do not begin with `open`, or name an unknown class."""
    core: RecordedAdmission | None = None
    loads: deque[FleetLoad] = deque()
    for line in lines:
        entry = msgspec.json.decode(line)
        if entry["room"] != LOG_ROOM or "input" not in entry:
            continue
        if entry["input"] == "open":
            core = RecordedAdmission(_decode_config(entry), entry["pools"], log, lambda pool, now: loads.popleft(), entry["at"])
        elif entry["input"] == "look":  # logged before the input in which the core asked for this load
            loads.append(msgspec.convert(entry["load"], FleetLoad))
        elif core is None:
            raise ValueError("the log does not say how this core was made")
        else:
            _REPLAYERS[entry["input"]](core, entry)


def _decode_config(entry: dict[str, Any]) -> AdmissionConfig:
    return msgspec.convert(entry["config"], AdmissionConfig)


def _decode_ticket(entry: dict[str, Any]) -> Ticket:
    priority_class = PriorityClass.from_label(entry["class"])
    if priority_class is None:
        raise ValueError(f"the log speaks of a class {entry['class']!r}, and there is none")
    return Ticket(**{name: entry[name] for name in _LOGGED_TICKET_FIELDS}, priority_class=priority_class)


_REPLAYERS: Final[Mapping[str, Callable[[RecordedAdmission, dict[str, Any]], object]]] = {
    "submit": lambda core, e: core.submit(_decode_ticket(e), e["at"], msgspec.convert(e["load"], FleetLoad)),
    "first_byte": lambda core, e: core.confirm_first_byte(e["id"], e["at"]),
    "release": lambda core, e: core.release(e["id"], ReleaseReason(e["end"]), e["at"]),
    "strand": lambda core, e: core.set_stranded(e["id"], stranded=e["stranded"], now=e["at"]),
    "resize": lambda core, e: core.resize(e["pool"], e["capacity"], e["at"]),
    "forget": lambda core, e: core.forget(e["pool"], e["at"]),
    "reconfigure": lambda core, e: core.reconfigure(_decode_config(e), e["at"]),
    "advance": lambda core, e: core.advance(e["at"]),
}
