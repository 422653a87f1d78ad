"""The driver of admission at a gateway whose scheduler is another process: every input is said, every decision is heard.

A slot is granted together with a backend (`RemoteSlotLease.place`). What the gateway may do by itself is decided at its end of
the link (`link.gateway_end`): whether the first byte may be sent, above all. The numbers of requests on the link are in the
order in which they ask for a slot. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from maitred.admission import Action, Admission, Refusal, ReleaseReason
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.admission.terms.limits import LimitStatus
from maitred.core.decisions import Decision
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.scheduler.drivers.admission import AdmissionRejected, RealTimeAdmission, SlotLease
from maitred.scheduler.link.failure_kinds import FailureKind
from maitred.scheduler.placements import MemoryLost
from maitred.wire.clock import Clock

_GRANTED: Final = Decision(0, -1, Action.ADMIT, "granted")
"""Stands for the decision of the scheduler, of which a gateway is told no more."""
_REJECT: Final = Action.REJECT


class RemoteEnd(Protocol):
    """What says and hears on the link."""

    def submit(self, number: int, request: Request, cost: int, memory: int, now: Micros) -> None:
        """Ask for a slot at `now`."""
        ...

    def confirm_first_byte(self, number: int) -> bool:
        """Return whether the first byte of a response may be sent."""
        ...

    def may_send(self, number: int) -> bool:
        """Return whether a request that was granted a slot may be sent to its backend now."""
        ...

    def yield_slot(self, number: int) -> None:
        """Give up the slot of a preempted request, which asks again."""
        ...

    def leave_backend(self, number: int, reason: str, kind: FailureKind) -> None:
        """Ask for another place for a request that its backend has failed."""
        ...

    def release(self, number: int, end: ReleaseReason, tokens: int | None) -> None:
        """End a request."""
        ...


class RemoteSlotLease(SlotLease):
    """A request in admission."""

    place: tuple[int, int | None] | None = None
    """The backend that it was granted, and the rank there; None: no backend may have it."""
    refusal: Refusal | None = None
    is_memory_lost = False
    """Whether it gets no slot because its program has to wait for memory elsewhere."""

    def __init__(self, request: Request, task: asyncio.Task[None], number: int) -> None:
        super().__init__(request, task)
        self.number = number
        """Its number on the link."""

    def wait_anew(self) -> None:
        """Wait for another decision."""
        self.granted = self.task.get_loop().create_future()

    def settle(self, decision: Decision) -> None:
        """Take the decision that is waited for."""
        if self.granted is not None and not self.granted.done():
            self.granted.set_result(decision)

    async def wait(self) -> None:
        granted = self.granted
        if granted is not None and (decision := await granted).action is _REJECT:
            if self.is_memory_lost:
                raise MemoryLost
            raise AdmissionRejected(decision, self.refusal)


class RemoteAdmission(RealTimeAdmission):
    """Asks a scheduler in another process. Its core has the rules in force, and no request."""

    def __init__(
        self, core: Admission, clock: Clock, end: RemoteEnd, memory_number: Callable[[RequestId], int] | None = None
    ) -> None:
        """`memory_number` returns the number of the memory of a request, 0 for none; None: no request has one."""
        super().__init__(core, clock)
        self._end, self._memory_number = end, memory_number
        self._by_number: dict[int, RemoteSlotLease] = {}
        self._by_id: dict[RequestId, RemoteSlotLease] = {}
        self._last_number = 0

    def submit(self, request: Request, cost: int, task: asyncio.Task[None], now: Micros) -> SlotLease:
        self._last_number += 1
        lease = RemoteSlotLease(request, task, self._last_number)
        lease.wait_anew()
        self._leases[request.id] = self._by_id[request.id] = self._by_number[lease.number] = lease
        memory = 0 if self._memory_number is None else self._memory_number(request.id)
        self._end.submit(lease.number, request, cost, memory, now)
        return lease

    def confirm_first_byte(self, request_id: RequestId, now: Micros) -> bool:
        lease = self._by_id.get(request_id)
        return lease is not None and self._end.confirm_first_byte(lease.number)

    def may_send(self, request_id: RequestId) -> bool:
        """Return whether a request may be sent to its backend now, so far as it holds a slot."""
        lease = self._by_id.get(request_id)
        return lease is None or self._end.may_send(lease.number)

    def yield_slot(self, request_id: RequestId) -> bool:
        """Free the slot of a preempted request. Whether it waits for another or is refused is what its lease waits for."""
        lease = self._by_id.get(request_id)
        if lease is None:
            return False
        lease.wait_anew()
        self._end.yield_slot(lease.number)
        return True

    def release(self, request_id: RequestId, end: ReleaseReason, tokens: int | None = None, ended_at: Micros = 0) -> None:
        lease = self._by_id.pop(request_id, None)
        if lease is not None:
            del self._leases[request_id], self._by_number[lease.number]
            self._end.release(lease.number, end, tokens)

    async def ask_again(self, request_id: RequestId, reason: str, kind: FailureKind) -> tuple[int, int | None] | None:
        """Return the place of a request that its backend has failed, when it has one; None if no backend may have it. Raises
        AdmissionRejected if it gets no slot any more, and MemoryLost if its program has to wait for memory elsewhere."""
        lease = self._by_id[request_id]
        lease.wait_anew()
        self._end.leave_backend(lease.number, reason, kind)
        await lease.wait()
        return lease.place

    def place_of(self, request_id: RequestId) -> tuple[int, int | None] | None:
        """Return the place that was granted to a request, or None if no backend may have it."""
        return self._by_id[request_id].place

    def has(self, request_id: RequestId) -> bool:
        """Return whether a request is in admission."""
        return request_id in self._by_id

    # What the scheduler says.

    def on_granted(self, number: int, backend: int, rank: int | None, limits: LimitStatus | None = None) -> None:
        """A request holds a slot."""
        lease = self._by_number.get(number)
        if lease is not None:
            lease.place, lease.limits = (backend, rank), limits
            lease.settle(_GRANTED)

    def on_queued(self, number: int, reason: str) -> None:
        """A request waits."""
        lease = self._by_number.get(number)
        if lease is not None:
            lease.queue_reason = reason

    def on_no_backend(self, number: int) -> None:
        """No backend may have a request."""
        lease = self._by_number.get(number)
        if lease is not None:
            lease.place = None
            lease.settle(_GRANTED)

    def on_memory_lost(self, number: int) -> None:
        """The program of a request has to wait for memory elsewhere."""
        lease = self._by_number.get(number)
        if lease is not None:
            lease.is_memory_lost = True
            lease.settle(Decision(self.clock.now(), lease.request.id, _REJECT, "memory_lost"))

    def on_rejected(self, number: int, reason: str, retry_after: Micros | None, refusal: Refusal | None) -> None:
        """A request gets no slot."""
        lease = self._by_number.get(number)
        if lease is not None:
            lease.refusal = refusal
            lease.settle(Decision(self.clock.now(), lease.request.id, _REJECT, reason, None, retry_after))

    def on_preempted(self, number: int) -> None:
        """The slot of a request is wanted by another."""
        lease = self._by_number.get(number)
        if lease is not None:
            lease.cancel()

    def request_id(self, number: int) -> RequestId | None:
        """Return the id of a request by its number on the link, or None if it has ended."""
        lease = self._by_number.get(number)
        return None if lease is None else lease.request.id

    def request_of(self, number: int) -> Request | None:
        """Return a request by its number on the link, or None if it has ended."""
        lease = self._by_number.get(number)
        return None if lease is None else lease.request

    def number_of(self, request_id: RequestId) -> int:
        """Return the number of a request on the link, or -1 for one that needs no slot."""
        lease = self._by_id.get(request_id)
        return -1 if lease is None else lease.number

    # What is decided elsewhere.

    def set_stranded(self, request_id: RequestId, *, stranded: bool) -> None:
        pass

    def resize_pool(self, pool: str, capacity: int, lead: Lead = NO_LEAD) -> None:
        pass

    def forget_pool(self, pool: str) -> bool:
        return True
