"""Replay: a log that a core has written (`recorded_core`) is run again, and writes another.

The log has everything on which decisions depend, so the second run takes the same decisions, byte for byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from maitred.admission.config import AdmissionConfig
from maitred.admission.enums import ReleaseReason
from maitred.admission.lead import Lead
from maitred.admission.recorded_core import LOG_ROOM, LOGGED_TICKET_FIELDS, RecordedAdmission
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import DecisionLog, refuse_gap
from maitred.core.request import PriorityClass


def replay(lines: Iterable[bytes], log: DecisionLog) -> None:
    """Run the inputs of admission in `lines` (as a DecisionLog writes them) again, and write a new log. Decisions, and lines of
    other packages, are skipped. Raises ValueError if the inputs do not begin with `open`, or name an unknown class, and where
    lines are missing."""
    core: RecordedAdmission | None = None
    loads: deque[FleetLoad] = deque()
    for line in lines:
        entry = msgspec.json.decode(line)
        refuse_gap(entry)
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
    fields = {name: entry[name] for name in LOGGED_TICKET_FIELDS}
    more = {"sequences": entry.get("sequences", 1), "client_id": entry.get("client_id", "")}
    return Ticket(**fields, **more, priority_class=priority_class)


_REPLAYERS: Final[Mapping[str, Callable[[RecordedAdmission, dict[str, Any]], object]]] = {
    "submit": lambda core, e: core.submit(_decode_ticket(e), e["at"], msgspec.convert(e["load"], FleetLoad)),
    "first_byte": lambda core, e: core.confirm_first_byte(e["id"], e["at"]),
    "release": lambda core, e: core.release(e["id"], ReleaseReason(e["end"]), e["at"], e.get("tokens")),
    "strand": lambda core, e: core.set_stranded(e["id"], stranded=e["stranded"], now=e["at"]),
    "leave_backend": lambda core, e: core.leave_backend(e["id"], e["at"]),
    "resize": lambda core, e: core.resize(e["pool"], e["capacity"], e["at"], Lead(e.get("lead", 0), e.get("lent", 0))),
    "forget": lambda core, e: core.forget(e["pool"], e["at"]),
    "reconfigure": lambda core, e: core.reconfigure(_decode_config(e), e["at"]),
    "advance": lambda core, e: core.advance(e["at"]),
}
