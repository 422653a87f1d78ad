"""A core that writes its inputs and decisions to a log, which `replay` runs again.

The log has everything on which decisions depend: how the core was created, each input, and each load of instances that the
core read, which precedes the input that made it read. An `advance` that decided nothing and read nothing is left out, because
it changed nothing. Example, of a request that finds a free slot:

    {"room":"admission","input":"submit","at":7,"class":"default","cost":1,"id":3,...}
    {"room":"admission","decision":{"at":7,"subject":3,"action":"admit","reason":"slot_free",...}}

Compiled (`tools/compile.py`), because it inherits from the core, which is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from maitred.admission.config import AdmissionConfig
from maitred.admission.core import EMPTY_LOAD, Admission, no_load
from maitred.admission.enums import ReleaseReason
from maitred.admission.lead import NO_LEAD, Lead
from maitred.admission.pool_views import HeadroomChange
from maitred.admission.slot_pool import LoadProbe
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros

LOG_ROOM: Final = "admission"
LOGGED_TICKET_FIELDS: Final = ("id", "pool", "tenant", "cost", "prompt_tokens", "slo_priority", "slo_target")
"""The fields of a ticket that the log has, beside its class; `sequences`, if it is more than 1; and `client_id`,
if it has one."""


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
        what = {name: getattr(ticket, name) for name in LOGGED_TICKET_FIELDS}
        if ticket.sequences != 1:
            what["sequences"] = ticket.sequences
        if ticket.client_id:
            what["client_id"] = ticket.client_id
        return self._record("submit", now, decisions, **what, **{"class": ticket.priority_class.label}, load=load)

    def confirm_first_byte(self, request_id: RequestId, now: Micros) -> bool:
        self._record("first_byte", now, (), id=request_id)
        return super().confirm_first_byte(request_id, now)

    def release(
        self, request_id: RequestId, release_reason: ReleaseReason, now: Micros, tokens: int | None = None
    ) -> Sequence[Decision]:
        decisions = super().release(request_id, release_reason, now, tokens)
        what = {} if tokens is None else {"tokens": tokens}
        return self._record("release", now, decisions, id=request_id, end=release_reason, **what)

    def set_stranded(self, request_id: RequestId, *, stranded: bool, now: Micros) -> Sequence[Decision]:
        decisions = super().set_stranded(request_id, stranded=stranded, now=now)
        return self._record("strand", now, decisions, id=request_id, stranded=stranded)

    def leave_backend(self, request_id: RequestId, now: Micros) -> Sequence[Decision]:
        return self._record("leave_backend", now, super().leave_backend(request_id, now), id=request_id)

    def resize(self, pool: str, capacity: int, now: Micros, lead: Lead = NO_LEAD) -> Sequence[Decision]:
        decisions = super().resize(pool, capacity, now, lead)
        return self._record("resize", now, decisions, pool=pool, capacity=capacity, lead=lead.kept, lent=lead.lent)

    def forget(self, pool: str, now: Micros) -> Sequence[Decision]:
        return self._record("forget", now, super().forget(pool, now), pool=pool)

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        return self._record("reconfigure", now, super().reconfigure(config, now), config=config)

    def advance(self, now: Micros) -> Sequence[Decision]:
        self._has_probed = False
        decisions = super().advance(now)
        return self._record("advance", now, decisions) if decisions or self._has_probed else decisions
