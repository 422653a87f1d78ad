"""Drive the core of the programs in real time: one clock, one timer, and a `MemoryLease` for each request of a program.

Every input of the core passes through `RealTimePrograms`, and every decision about a request is applied to its lease there. A
lease begins when its request has been read and ends exactly once, however the request ends: answered, refused, failed,
preempted, or left by its client, also while it waits for memory. Between, it is granted memory at a backend, or waits for it;
when its backend fails before the response has begun, `move` asks for memory elsewhere.

    begin() ──GRANT──▶ memory is known ──backend fails, move()──▶ GRANT at another, or WAIT
       │                     ▲
       └──WAIT──▶ wait() ────┘ GRANT with a later input of the core
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from maitred.core.errors import MaitredError
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.programs import (
    BackendStatus,
    Program,
    ProgramAction,
    ProgramDecision,
    ProgramReason,
    ProgramRecord,
    ProgramRequest,
    Programs,
    ProgramsConfig,
    Usage,
)
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.wire.clock import Clock


class ProgramRejected(MaitredError):  # noqa: N818  (an answer, not a fault)
    """The core refused a request of a program."""

    def __init__(self, request: ProgramRequest, reason: ProgramReason) -> None:
        self.request = request
        self.reason = reason
        super().__init__(f"refused: {reason}")


class MemoryLease:
    """A request of a program, from `begin` to `end`. It waits for KV memory, then has a place there."""

    __slots__ = (
        "_changed",
        "arrival",
        "asks_for_stream",
        "ends_program",
        "first_data_at",
        "granted_at",
        "is_stream",
        "memory",
        "refusal",
        "request",
        "usage",
    )

    def __init__(self, request: ProgramRequest, arrival: Micros, *, asks_for_stream: bool, ends_program: bool = False) -> None:
        self.request = request
        self.asks_for_stream = asks_for_stream
        self.ends_program = ends_program
        """Whether its program is over when it has ended."""
        self.arrival = arrival
        self.memory: int | None = None
        """The index of the memory where it was granted a place, as the core numbers them; None while it waits."""
        self.granted_at: Micros | None = None
        """When it was last granted memory, or None if it never was."""
        self.first_data_at: Micros | None = None
        """When the first data of its response came, or None if none did."""
        self.is_stream = False
        """Whether its response is a stream; known from its first data on."""
        self.usage: Usage | None = None
        """What its backend has reported, or None."""
        self.refusal: ProgramReason | None = None
        """Why it gets no memory, or None."""
        self._changed: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Return when memory was granted. Raises ProgramRejected if it will not be."""
        while self.memory is None:
            self.raise_if_refused()
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed

    def raise_if_refused(self) -> None:
        """Raise ProgramRejected if memory will not be granted."""
        if self.refusal is not None:
            raise ProgramRejected(self.request, self.refusal)

    def apply_decision(self, decision: ProgramDecision) -> None:
        """Apply a decision of the core about this request."""
        if decision.action is ProgramAction.REJECT:
            self.refuse(decision.reason)
        elif decision.action is ProgramAction.GRANT:
            self.granted_at = decision.at
            self.set_memory(decision.backend)
        else:
            self.set_memory(None)

    def refuse(self, reason: ProgramReason) -> None:
        """Let `wait` raise ProgramRejected."""
        self.refusal = reason
        self.set_memory(None)

    def set_memory(self, memory: int | None) -> None:
        """Note where the request has memory; None: it waits, or was refused."""
        self.memory = memory
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class RealTimePrograms:
    """The only user of a core of programs. Used inside one event loop."""

    def __init__(self, core: Programs, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        """The clock of all inputs of the core."""
        self.decision_counts: Counter[tuple[ProgramAction, ProgramReason]] = Counter()
        """How often the core has decided what for which reason."""
        self.observers: list[Callable[[Sequence[ProgramDecision]], object]] = []
        """Each is called with the decisions on every input, also if there are none, after they were applied."""
        self.end_observers: list[Callable[[MemoryLease, Program | None], object]] = []
        """Each is called when a lease has ended, with the program of its request; None if that was released or never known."""
        self.restored = asyncio.Event()
        """Set when the programs of the last run are known again; no request is granted memory before."""
        self.restored.set()
        self._leases: dict[RequestId, MemoryLease] = {}
        self._timer = DeadlineTimer(self._on_due, clock)

    @property
    def leases(self) -> Collection[MemoryLease]:
        """All requests that wait for memory or have it."""
        return self._leases.values()

    def prefilling(self, memory: int) -> set[int]:
        """Return the serial numbers of the programs at a memory that may not be there whole: a stream that they have asked for
        has not begun, so a part of its prompt may not be computed yet."""
        leases = (lease for lease in self._leases.values() if lease.memory == memory)
        unanswered = (lease for lease in leases if lease.asks_for_stream and lease.first_data_at is None)
        programs = (self.core.program_of(lease.request.id) for lease in unanswered)
        return {program.serial for program in programs if program is not None}

    def begin(
        self, request: ProgramRequest, now: Micros, *, asks_for_stream: bool = False, ends_program: bool = False
    ) -> MemoryLease:
        """Ask at `now` for memory for the program of a request. Call `end` afterwards, even if `MemoryLease.wait` raises."""
        lease = MemoryLease(request, now, asks_for_stream=asks_for_stream, ends_program=ends_program)
        self.begin_lease(lease, now)
        return lease

    def begin_lease(self, lease: MemoryLease, now: Micros) -> None:
        """Ask at `now` for memory for the program of the request of a lease."""
        self._leases[lease.request.id] = lease
        self._apply_decisions(self.core.begin(lease.request, now))

    def add_progress(self, lease: MemoryLease, tokens: int) -> None:
        """Count `tokens` more of the response to the request of a lease."""
        self.core.progress(lease.request.id, tokens, self.clock.now())

    def move(self, lease: MemoryLease) -> int | None:
        """Ask for memory elsewhere: the backend of a granted lease has failed its request before the response began. Afterwards
        the lease has memory again, waits for it, or is refused. Return its memory, or None."""
        request_id = lease.request.id
        decisions = self.core.move(request_id, self.clock.now())
        self._apply_decisions(decisions)
        if all(decision.request != request_id for decision in decisions):
            lease.refuse(ProgramReason.RELEASED)  # The core does not know it any more.
        return lease.memory

    def end(self, lease: MemoryLease, ended_at: Micros = 0) -> None:
        """End a lease, with its usage if it has one, and its program if it was the last one. `ended_at`: the time, if it was
        read in this step of its task. Idempotent."""
        if self._leases.pop(lease.request.id, None) is None:
            return
        program = self.core.program_of(lease.request.id)
        self._apply_decisions(self.core.end(lease.request.id, lease.usage, ended_at or self.clock.now()))
        for observe in self.end_observers:
            observe(lease, program)
        if lease.ends_program and program is not None:
            self.release(program.key.tenant, program.key.name)

    def release(self, tenant: str, name: str) -> bool:
        """Forget a program of a tenant, and refuse its requests that wait. Return whether there was one."""
        if next(self.core.find(tenant, name), None) is None:
            return False
        decisions = self.core.release(tenant, name, self.clock.now())
        self._apply_decisions(decisions)
        return any(d.action is ProgramAction.END and d.reason is ProgramReason.RELEASED for d in decisions)

    def adopt(self, records: Sequence[ProgramRecord]) -> None:
        """Take over the programs of the last run. See `Programs.adopt`."""
        self._apply_decisions(self.core.adopt(records, self.clock.now()))

    def set_backend(
        self, index: int, models: Collection[str], status: BackendStatus, capacity: int | None, shared_tokens: int
    ) -> None:
        """Say what is known of a memory now. See `Programs.set_backend`."""
        self._apply_decisions(
            self.core.set_backend(
                index, self.clock.now(), models=models, status=status, capacity=capacity, shared_tokens=shared_tokens
            )
        )

    def reconfigure(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on. Raises ValueError for a change that needs a restart."""
        self._apply_decisions(self.core.reconfigure(config, self.clock.now()))

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _apply_decisions(self, decisions: Sequence[ProgramDecision]) -> None:
        for decision in decisions:
            self.decision_counts[decision.action, decision.reason] += 1
            lease = None if decision.request is None else self._leases.get(decision.request)
            if lease is not None:
                lease.apply_decision(decision)
        for observe in self.observers:
            observe(decisions)
        self._timer.set_to(self.core.next_deadline())

    def _on_due(self) -> None:
        self._apply_decisions(self.core.advance(self.clock.now()))
