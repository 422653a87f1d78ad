"""Drives an admission core in real time: one clock, one timer, and a `SlotLease` for each request that is there.

Everything the core is told passes here, and every decision it answers with is applied here. A decision on a request that has
gone meanwhile is nobody's: its handler releases it in any case, and the core takes a second release for none.

A request is stopped by cancelling its task, and a task may be told to stop by several at once: its client leaves, its backend
goes down, it is preempted, the server shuts down. Who cancels also sets a mark of its own, and who catches the cancellation
takes back, by `uncancel`, what was its own. Only if nothing is left may it go on; else the cancellation is somebody else's as
well and passes on. So the marks may come together and in any order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable

from maitred.admission import EMPTY_LOAD, Action, Admission, AdmissionConfig, LoadProbe, Refusal, ReleaseReason, no_load
from maitred.core.decisions import Decision
from maitred.core.errors import MaitredError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros, to_seconds


class AdmissionRejected(MaitredError):  # noqa: N818  (an answer, not a fault)
    """Admission said no."""

    def __init__(self, decision: Decision, refusal: Refusal | None = None) -> None:
        self.reason = decision.reason
        self.refusal = refusal
        """What the admission policy has to say; None: it was not the policy."""
        self.retry_after = decision.retry_after
        """µs; None: nothing is known."""
        super().__init__(f"refused: {decision.reason}")


class SlotLease:
    """One request in admission, from `submit` until `release`, and the task that serves it."""

    __slots__ = ("_driver", "_granted", "_id", "_preempted", "_task", "tenant")

    def __init__(self, driver: RealTimeAdmission, request: Request) -> None:
        self.tenant = request.tenant
        self._driver = driver
        self._id = request.id
        self._task = asyncio.current_task()
        self._granted: asyncio.Future[None] | None = None
        self._preempted = False

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a slot; else it holds one."""
        return self._granted is not None and not self._granted.done()

    async def wait(self) -> None:
        """Until it holds a slot. Raises Refused."""
        if self._granted is not None:
            await self._granted

    def absorb_preemption(self) -> bool:
        """Whether the task was cancelled because its slot is wanted, and for no other reason. To be asked once; then it may go
        on, to `vacate`."""
        assert self._task is not None
        preempted, self._preempted = self._preempted, False
        return preempted and self._task.uncancel() == 0

    def yield_slot(self) -> bool:
        """Give the slot up. True: it is to be tried again, in its `turn`."""
        return self._driver.yield_slot(self._id)

    def apply_decision(self, decision: Decision) -> None:
        """For the driver."""
        if decision.action is Action.PREEMPT_SLOT:
            assert self._task is not None
            self._preempted = True
            self._task.cancel()
        elif decision.action is Action.QUEUE:
            if not self.is_waiting:
                self._granted = asyncio.get_running_loop().create_future()
        elif self._granted is not None and not self._granted.done():
            if decision.action is Action.ADMIT:
                self._granted.set_result(None)
            elif decision.action is Action.REJECT:
                self._granted.set_exception(AdmissionRejected(decision))


class RealTimeAdmission:
    """One per core; used inside one loop."""

    def __init__(self, core: Admission, load_probe: LoadProbe = no_load) -> None:
        """`look` tells how loaded the backends of a model are."""
        self.core = core
        self._load_probe = load_probe
        self._leases: dict[RequestId, SlotLease] = {}
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def now() -> Micros:
        """The monotonic clock. The loop's own would do, but uvloop's has only milliseconds."""
        return time.monotonic_ns() // 1000

    @property
    def leases(self) -> Collection[SlotLease]:
        """Everybody who is here."""
        return self._leases.values()

    def submit(self, request: Request, cost: int) -> SlotLease:
        """Ask for a slot, on behalf of the current task; `cost` in tokens, prompt and answer.

        Raises Refused. Release it afterwards, even if it was refused.
        """
        core, now = self.core, self.now()
        load = self._load_probe(request.model, now) if core.reads_load else EMPTY_LOAD
        decisions = core.submit(core.make_ticket(request, cost), now, load)
        own = decisions[-1]
        if own.action is Action.REJECT:
            self._apply_decisions(decisions)
            raise AdmissionRejected(own, core.refusal(own))
        stay = self._leases[request.id] = SlotLease(self, request)
        if own.action is not Action.ADMIT or len(decisions) > 1:
            self._apply_decisions(decisions)
        return stay

    def confirm_first_byte(self, request_id: RequestId) -> bool:
        """The first data of its body is about to go out. False: it has lost its slot, send none of it."""
        return self.core.first_byte(request_id, self.now())

    def yield_slot(self, request_id: RequestId) -> bool:
        """A victim's work has stopped: its slot is free. Whether it waits for another one now."""
        decisions = self.core.release(request_id, ReleaseReason.SLOT_PREEMPTED, self.now())
        self._apply_decisions(decisions)
        return any(decision.subject == request_id and decision.action is Action.QUEUE for decision in decisions)

    def release(self, request_id: RequestId, end: ReleaseReason) -> None:
        """It is over. Idempotent."""
        self._leases.pop(request_id, None)
        self._apply_decisions(self.core.release(request_id, end, self.now()))

    def resize_pool(self, pool: str, capacity: int) -> None:
        """The pool has `capacity` slots now."""
        self._apply_decisions(self.core.resize(pool, capacity, self.now()))

    def reconfigure(self, config: AdmissionConfig) -> None:
        """Other rules from now on, for those who are there as well."""
        self._apply_decisions(self.core.reconfigure(config, self.now()))

    def close(self) -> None:
        """Set no more timers."""
        if self._timer is not None:
            self._timer.cancel()

    def _apply_decisions(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            stay = self._leases.get(decision.subject)
            if stay is not None:
                stay.apply_decision(decision)
        self._set_timer()

    def _set_timer(self) -> None:
        """Be woken at the core's next deadline. A timer that rings earlier is left alone: it sets the next one."""
        deadline = self.core.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        # The loop may ring a millisecond early; and what is due at once is no timer to uvloop, which then has no `when`.
        delay = max(0.0, to_seconds(deadline - self.now())) + 0.001
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._apply_decisions(self.core.advance(self.now()))
