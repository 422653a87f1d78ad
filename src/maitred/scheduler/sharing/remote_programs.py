"""The driver of agent programs at a gateway whose scheduler is another process: every input is said, every decision is heard.

Its core has the rules in force, and no program. A lease is granted memory when the scheduler says so; where the request goes is
decided there as well, with its slot (`remote_placement`).
"""

from __future__ import annotations

from typing import Protocol

from maitred.admission import Action, Refusal
from maitred.core.decisions import Decision
from maitred.core.units import Micros
from maitred.programs import ProgramReason, ProgramRequest, Programs
from maitred.scheduler.drivers.admission import AdmissionRejected
from maitred.scheduler.drivers.programs import MemoryLease, RealTimePrograms
from maitred.scheduler.link.messages import EndProgram, Memory
from maitred.scheduler.link.terms import ProgramTerms
from maitred.wire.clock import Clock


class ProgramsEnd(Protocol):
    """What says and hears on the link."""

    def begin_program(self, number: int, terms: ProgramTerms) -> None:
        """Ask for memory for a request."""
        ...

    def add_program_tokens(self, number: int, tokens: int) -> None:
        """Tell that tokens of a response have come."""
        ...

    def end_program(self, ended: EndProgram) -> None:
        """Give the memory of a request back."""
        ...


class RemoteMemoryLease(MemoryLease):
    """A request that waits for memory or has it."""

    __slots__ = ("number", "unserved")

    def __init__(
        self, request: ProgramRequest, arrival: Micros, number: int, *, asks_for_stream: bool, ends_program: bool
    ) -> None:
        super().__init__(request, arrival, asks_for_stream=asks_for_stream, ends_program=ends_program)
        self.number = number
        """Its number on the link, from 1."""
        self.unserved: AdmissionRejected | None = None
        """Why it waits no longer, where no scheduler decides about it."""

    def raise_if_refused(self) -> None:
        """Raise ProgramRejected if the scheduler has refused memory, and AdmissionRejected if there is none for long."""
        if self.unserved is not None:
            raise self.unserved
        super().raise_if_refused()


class RemotePrograms(RealTimePrograms):
    """Asks a scheduler in another process."""

    def __init__(self, core: Programs, clock: Clock, end: ProgramsEnd) -> None:
        super().__init__(core, clock)
        self._end = end
        self._by_number: dict[int, RemoteMemoryLease] = {}
        self._last_number = 0

    def begin(
        self, request: ProgramRequest, now: Micros, *, asks_for_stream: bool = False, ends_program: bool = False
    ) -> MemoryLease:
        self._last_number += 1
        number = self._last_number
        lease = RemoteMemoryLease(request, now, number, asks_for_stream=asks_for_stream, ends_program=ends_program)
        self._leases[request.id] = self._by_number[number] = lease
        terms = ProgramTerms(
            *(request.model, request.tenant, request.program, request.parent, int(request.priority_class)),
            *(request.characters, request.prompt_tokens, request.client_id, asks_for_stream, ends_program),
        )
        self._end.begin_program(number, terms)
        return lease

    def add_progress(self, lease: MemoryLease, tokens: int) -> None:
        assert isinstance(lease, RemoteMemoryLease)
        self._end.add_program_tokens(lease.number, tokens)

    def end(self, lease: MemoryLease, ended_at: Micros = 0) -> None:
        assert isinstance(lease, RemoteMemoryLease)
        if self._leases.pop(lease.request.id, None) is None:
            return
        del self._by_number[lease.number]
        now = ended_at or self.clock.now()
        since = None if lease.first_data_at is None else now - lease.first_data_at
        self._end.end_program(EndProgram(lease.number, lease.usage, lease.is_stream, since))

    def refuse_waiting(self, reason: str, refusal: Refusal) -> None:
        """Let all requests that wait for memory wait no longer."""
        for lease in self._by_number.values():
            if lease.memory is None and lease.unserved is None:
                decision = Decision(self.clock.now(), lease.request.id, Action.REJECT, reason, None, refusal.retry_after)
                lease.unserved = AdmissionRejected(decision, refusal)
                lease.set_memory(None)

    def memory_number(self, request_id: int) -> int:
        """Return the number on the link of the memory of a request, or 0 for one of no program."""
        lease = self._leases.get(request_id)
        return lease.number if isinstance(lease, RemoteMemoryLease) else 0

    def on_memory(self, told: Memory) -> None:
        """Take what the scheduler says of a memory."""
        lease = self._by_number.get(told.number)
        if lease is None:
            return
        if told.refusal:
            lease.refuse(ProgramReason(told.refusal))
        else:
            if told.memory is not None:
                lease.granted_at = self.clock.now()
            lease.set_memory(told.memory)
