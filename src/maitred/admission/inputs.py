"""The inputs of admission as data: one struct for each method of `Admission` that is one. See `core.decisions`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from maitred.admission.terms.config import AdmissionConfig
from maitred.admission.terms.enums import ReleaseReason
from maitred.admission.terms.lead import Lead
from maitred.admission.terms.limits import UsageRecord
from maitred.admission.terms.ticket import Ticket, TicketState
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision, DecisionLog, Input
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.core import Admission

ROOM_NAME: Final = "admission"
EMPTY_LOAD: Final = FleetLoad()


class Open(Input, frozen=True):
    """A core is made."""

    config: AdmissionConfig
    pools: dict[str, int]


class Look(Input, frozen=True):
    """The load that the core reads next, which it has asked for within the input that follows."""

    pool: str
    load: FleetLoad

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        if isinstance(core.looks, LoggedLooks):  # Without a log nobody has read it here, and nothing waits for it.
            core.looks.foresee(self.load)
        return ()


class Submit(Input, frozen=True):
    """A request asks to enter."""

    id: RequestId
    pool: str
    priority_class: str = msgspec.field(name="class")
    tenant: str
    cost: int
    prompt_tokens: int
    slo_priority: int
    slo_target: Micros | None
    load: FleetLoad
    sequences: int = 1
    client_id: str = ""

    @classmethod
    def of(cls, ticket: Ticket, load: FleetLoad, now: Micros) -> Submit:
        """Return what `Admission.submit` is told."""
        return cls(
            now,
            ticket.id,
            ticket.pool,
            ticket.priority_class.label,
            ticket.tenant,
            ticket.cost,
            ticket.prompt_tokens,
            ticket.slo_priority,
            ticket.slo_target,
            load,
            ticket.sequences,
            ticket.client_id,
        )

    def ticket(self) -> Ticket:
        """Return the ticket of the request. Raises ValueError for a class that there is not."""
        priority_class = PriorityClass.from_label(self.priority_class)
        if priority_class is None:
            raise ValueError(f"there is no class {self.priority_class!r}")
        return Ticket(
            self.id,
            self.pool,
            priority_class,
            self.tenant,
            self.cost,
            self.prompt_tokens,
            self.slo_priority,
            self.slo_target,
            self.sequences,
            self.client_id,
        )

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.submit(self.ticket(), self.at, self.load)


class FirstByte(Input, frozen=True):
    """The first byte of a response is about to be sent."""

    id: RequestId

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        core.confirm_first_byte(self.id, self.at)
        return ()


class Decline(Input, frozen=True):
    """The preemption of a request came after its first byte."""

    id: RequestId

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.decline(self.id, self.at)


class Release(Input, frozen=True):
    """A request has ended."""

    id: RequestId
    end: ReleaseReason
    tokens: int | None = None

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.release(self.id, self.end, self.at, self.tokens)


class Strand(Input, frozen=True):
    """The slot of a request goes when it leaves, or stays after all."""

    id: RequestId
    stranded: bool

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.set_stranded(self.id, stranded=self.stranded, now=self.at)


class LeaveBackend(Input, frozen=True):
    """The backend of a request has failed it."""

    id: RequestId

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.leave_backend(self.id, self.at)


class AdoptedRequest(msgspec.Struct, frozen=True):
    """A request that is taken over, in its state."""

    submit: Submit
    """How it was submitted; `at` is when, which may be before the core was made."""
    state: str
    admitted_at: Micros = 0
    is_new: bool = False


class Adopt(Input, frozen=True):
    """Requests are taken over that another core has decided on, or that have waited for a core."""

    requests: list[AdoptedRequest]

    @classmethod
    def of(cls, tickets: Sequence[Ticket], now: Micros, newcomers: Collection[RequestId]) -> Adopt:
        """Return what `Admission.adopt` is told."""
        submits = [Submit.of(ticket, EMPTY_LOAD, ticket.submitted_at) for ticket in tickets]
        pairs = zip(submits, tickets, strict=True)
        adopted = [
            AdoptedRequest(submit, ticket.state.name.lower(), ticket.admitted_at, ticket.id in newcomers)
            for submit, ticket in pairs
        ]
        return cls(now, adopted)

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        tickets = []
        for request in self.requests:
            ticket = request.submit.ticket()
            ticket.state, ticket.submitted_at = TicketState[request.state.upper()], request.submit.at
            ticket.admitted_at = request.admitted_at
            tickets.append(ticket)
        return core.adopt(tickets, self.at, {request.submit.id for request in self.requests if request.is_new})


class Recall(Input, frozen=True):
    """What another core has counted for limits is taken over."""

    records: list[UsageRecord]
    anew: bool

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.recall(self.records, self.at, anew=self.anew)


class Resize(Input, frozen=True):
    """A model has another number of slots."""

    pool: str
    capacity: int
    # Logs of before there was a lead lack both. Factories, because a value that equals a plain default would not be logged.
    lead: int = msgspec.field(default_factory=int)
    lent: int = msgspec.field(default_factory=int)

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.resize(self.pool, self.capacity, self.at, Lead(self.lead, self.lent))


class Forget(Input, frozen=True):
    """A model is not served any more."""

    pool: str

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.forget(self.pool, self.at)


class Reconfigure(Input, frozen=True):
    """There are other rules."""

    config: AdmissionConfig

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.reconfigure(self.config, self.at)


class Advance(Input, frozen=True):
    """Time has passed."""

    def apply_to(self, core: Admission) -> Sequence[Decision]:
        return core.advance(self.at)


AdmissionInput: TypeAlias = (
    Open
    | Look
    | Submit
    | FirstByte
    | Decline
    | Release
    | Strand
    | LeaveBackend
    | Adopt
    | Recall
    | Resize
    | Forget
    | Reconfigure
    | Advance
)


class LoggedLooks:
    """The loads that a core reads, which are logged; or those that a log has foreseen."""

    def __init__(self, load_probe: Callable[[str, Micros], FleetLoad], log: DecisionLog) -> None:
        self._load_probe, self._log = load_probe, log
        self._foreseen: deque[FleetLoad] = deque()

    def __call__(self, pool: str, now: Micros) -> FleetLoad:
        """Return the load of the instances of a pool."""
        if self._foreseen:
            return self._foreseen.popleft()
        load = self._load_probe(pool, now)
        self._log.log_input(ROOM_NAME, Look(now, pool, load))
        return load

    def foresee(self, load: FleetLoad) -> None:
        """Tell the load that is read next, in place of what the probe would return."""
        self._foreseen.append(load)
