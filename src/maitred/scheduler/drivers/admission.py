"""Drive an admission core in real time: one clock, one timer, and a `SlotLease` for each request in admission.

Every input of the core passes through `RealTimeAdmission`, and every decision of the core is applied there. A decision on a
request that has ended meanwhile is dropped: the task of that request releases it in any case, and a second release of a request
has no effect.

A victim of a preemption is stopped by its lease, which is a `CancelScope`.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from maitred.admission import (
    EMPTY_LOAD,
    Action,
    Admission,
    AdmissionConfig,
    LoadProbe,
    Reason,
    Refusal,
    ReleaseReason,
    TicketState,
    no_load,
)
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.admission.terms.limits import LimitStatus
from maitred.core.decisions import Decision, decision_on
from maitred.core.errors import MaitredError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.scheduler.drivers.cancel_scope import CancelScope
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.wire.clock import Clock

_ADMIT: Final = Action.ADMIT  # members of enums are slow to look up
_PREEMPT_SLOT: Final = Action.PREEMPT_SLOT
_QUEUE: Final = Action.QUEUE
_REJECT: Final = Action.REJECT
_LEAD_FREE: Final = Reason.LEAD_FREE
_ADMITTED: Final = TicketState.ADMITTED
_LEFT: Final = TicketState.LEFT


class AdmissionRejected(MaitredError):  # noqa: N818  (an answer, not a fault)
    """Admission rejected a request."""

    def __init__(self, decision: Decision, refusal: Refusal | None = None) -> None:
        self.reason = decision.reason
        self.refusal = refusal
        """Status and words of the admission policy that refused the request, or None if no policy did."""
        self.retry_after = decision.retry_after
        """Estimated time until a request like this one would be admitted, µs, or None if unknown."""
        super().__init__(decision.reason)

    def __str__(self) -> str:
        return f"refused: {self.reason}"


class SlotLease(CancelScope):
    """A request in admission, from `submit` to `release`. It waits for a slot, then holds one. If it is cancelled, it is
    preempted: `RealTimeAdmission.yield_slot` is next."""

    queue_reason = ""
    """Why it waits, or has waited last, if it has."""

    def __init__(self, request: Request, task: asyncio.Task[None]) -> None:
        self.task = task
        self.request = request
        self.limits: LimitStatus | None = None
        """The limits of requests and tokens that hold for it, as they were when it was counted, or None if none holds."""
        self.granted: asyncio.Future[Decision] | None = None
        """Done with the decision by which the request holds a slot, or gets none. None if it has had one from the beginning."""

    @property
    def is_waiting(self) -> bool:
        """Whether the request waits for a slot; otherwise it holds one."""
        return self.granted is not None and not self.granted.done()

    @property
    def admitted_because(self) -> str:
        """Why it holds a slot; of one that it had at once, that one was free."""
        granted = self.granted
        has_waited = granted is not None and granted.done() and not granted.cancelled()
        return str(granted.result().reason) if granted is not None and has_waited else str(Reason.SLOT_FREE)

    async def wait(self) -> None:
        """Return when the request holds a slot. Raises AdmissionRejected if it gets none."""
        granted = self.granted
        # An exception that the future kept would refer to the frames that refer to this lease.
        if granted is not None and (decision := await granted).action is _REJECT:
            raise AdmissionRejected(decision)

    def apply_decision(self, decision: Decision) -> None:
        """Apply a decision of the core on this request."""
        if decision.action is _PREEMPT_SLOT:
            self.cancel()
        elif decision.action is _QUEUE:
            self.queue_reason = decision.reason
            if not self.is_waiting:
                self.granted = asyncio.get_running_loop().create_future()
        elif self.is_waiting and (decision.action is _ADMIT or decision.action is _REJECT):
            assert self.granted is not None
            self.granted.set_result(decision)


class RealTimeAdmission:
    """The only user of an admission core. Used inside one event loop."""

    def __init__(
        self,
        core: Admission,
        clock: Clock,
        load_probe: LoadProbe = no_load,
        pool_of: Callable[[str], str] = str,
    ) -> None:
        """`load_probe` returns the load of the backends of a pool, and `pool_of` the pool of a model."""
        self.core = core
        self.clock = clock
        """The clock of all inputs of the core."""
        self._load_probe = load_probe
        self._pool_of = pool_of
        self._leases: dict[RequestId, SlotLease] = {}
        self._timer = DeadlineTimer(self._on_due, clock)

    @property
    def leases(self) -> Collection[SlotLease]:
        """All requests that wait or hold a slot."""
        return self._leases.values()

    @property
    def reads_load(self) -> bool:
        """Whether the load of backends is to be known."""
        return self.core.reads_load

    def submit(self, request: Request, cost: int, task: asyncio.Task[None], now: Micros) -> SlotLease:
        """Ask at `now` for a slot for the request that `task` serves. `cost` is in tokens, prompt and answer.

        Raises AdmissionRejected, and then nothing is left of the request. Otherwise call `release` afterwards.
        """
        core = self.core
        pool = self._pool_of(request.model)
        load = self._load_probe(pool, now) if core.reads_load else EMPTY_LOAD
        ticket = core.make_ticket(request, cost, pool)
        decisions = core.submit(ticket, now, load)
        if ticket.state is _LEFT:
            self._apply_decisions(decisions)  # Those on other requests count, whatever becomes of this one.
            refused = decision_on(request.id, decisions)
            raise AdmissionRejected(refused, core.refusal(refused))
        lease = self._leases[request.id] = SlotLease(request, task)
        if core.limits.is_on:
            lease.limits = core.limits.status(request.id)
        # An admission alone, the usual case, needs no further step: nothing waits in the lease, and no deadline is new; but one
        # beyond what the engines run at once is watched.
        if ticket.state is not _ADMITTED or len(decisions) > 1 or decisions[0].reason is _LEAD_FREE:
            self._apply_decisions(decisions)
        return lease

    def confirm_first_byte(self, request_id: RequestId, now: Micros) -> bool:
        """Tell the core that the first byte of a response is about to be sent; from then on the request is no victim.

        Return False if the request has lost its slot already: send nothing then.
        """
        return self.core.confirm_first_byte(request_id, now)

    def yield_slot(self, request_id: RequestId) -> bool:
        """Free the slot of a preempted request, after its work has stopped. Return whether the request waits for another
        slot, in `SlotLease.granted`: the pool decides that (`SlotPool._end_or_retry`)."""
        decisions = self.core.release(request_id, ReleaseReason.SLOT_PREEMPTED, self.clock.now())
        self._apply_decisions(decisions)
        return _must_wait(request_id, decisions)

    def release(self, request_id: RequestId, end: ReleaseReason, tokens: int | None = None, ended_at: Micros = 0) -> None:
        """End a request: free its slot, or its place in the queue. `tokens`: those that it had, if known. `ended_at`: the time,
        if it was read in this step of its task. Idempotent."""
        self._leases.pop(request_id, None)
        self._apply_decisions(self.core.release(request_id, end, ended_at or self.clock.now(), tokens))

    def set_stranded(self, request_id: RequestId, *, stranded: bool) -> None:
        """Note that the slot of a request goes when it leaves its backend, or that it does not."""
        self._apply_decisions(self.core.set_stranded(request_id, stranded=stranded, now=self.clock.now()))

    async def leave_backend(self, request_id: RequestId) -> bool:
        """Note that a request leaves a backend that has failed it, and return when it may be sent to another: at once (False)
        if its slot counts, else when it has waited for one (True). Raises AdmissionRejected if it gets none."""
        decisions = self.core.leave_backend(request_id, self.clock.now())
        self._apply_decisions(decisions)
        # Its wait may have ended in that very instant: with a slot, or with a refusal because its time in the queue is over.
        if not _must_wait(request_id, decisions):
            return False
        await self._leases[request_id].wait()
        return True

    def resize_pool(self, pool: str, capacity: int, lead: Lead = NO_LEAD) -> None:
        """Set the number of slots of `pool`, of which `lead` are beyond what its backends run at once."""
        self._apply_decisions(self.core.resize(pool, capacity, self.clock.now(), lead))

    def forget_pool(self, pool: str) -> bool:
        """Remove a pool that is not needed any more, and return True; or False if a request waits or holds a slot there."""
        if not self.core.is_unused(pool):
            return False
        self._apply_decisions(self.core.forget(pool, self.clock.now()))
        return True

    def reconfigure(self, config: AdmissionConfig) -> None:
        """Use `config` from now on, for the requests that wait or hold a slot as well."""
        self._apply_decisions(self.core.reconfigure(config, self.clock.now()))

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _apply_decisions(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            lease = self._leases.get(decision.subject)
            if lease is not None:
                lease.apply_decision(decision)
        deadline = self.core.next_deadline()
        if deadline is not None:
            self._timer.set_to(deadline)

    def _on_due(self) -> None:
        self._apply_decisions(self.core.advance(self.clock.now()))


def _must_wait(request_id: RequestId, decisions: Sequence[Decision]) -> bool:
    """Return whether a request that has held a slot is to wait for one."""
    return any(decision.subject == request_id and decision.action is _QUEUE for decision in decisions)
