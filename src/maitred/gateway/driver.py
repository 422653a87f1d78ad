"""Drives an admission core in real time: one clock, one timer, and a future for each request that waits.

Everything the core is told passes here, and every decision it answers with is applied here. A decision on a request that has
gone meanwhile is nobody's: its handler releases it in any case, and the core takes a second release for none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from maitred.admission import Action, Admission, End, Ticket
from maitred.decisions import Decision
from maitred.errors import MaitredError
from maitred.request import Request, RequestId
from maitred.units import Micros, to_seconds


class Refused(MaitredError):  # noqa: N818  (an answer, not a fault)
    """Admission said no, for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"refused: {reason}")


class Driver:
    """One per core; used inside one loop."""

    def __init__(self, core: Admission) -> None:
        self.core = core
        self._waiting: dict[RequestId, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def now() -> Micros:
        """The monotonic clock. The loop's own would do, but uvloop's has only milliseconds."""
        return time.monotonic_ns() // 1000

    def submit(self, request: Request) -> asyncio.Future[None] | None:
        """Ask for a slot. None: it has one. Else a future that ends when it has one, or raises Refused.

        Raises Refused. Release it afterwards, even if it was refused or never waited for.
        """
        decisions = self.core.submit(Ticket(request.id, request.model, request.priority_class), self.now())
        own = decisions[-1]
        if len(decisions) > 1:
            self._apply(decisions[:-1])
        if own.action is Action.ADMIT:
            return None
        if own.action is Action.REJECT:
            raise Refused(own.reason)
        future = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        self._set_timer()
        return future

    def first_byte(self, request_id: RequestId) -> bool:
        """The first data of its body is about to go out. False: it has lost its slot, send none of it."""
        return self.core.first_byte(request_id, self.now())

    def release(self, request_id: RequestId, end: End) -> None:
        """It is over. Idempotent."""
        if self._waiting:
            self._waiting.pop(request_id, None)
        decisions = self.core.release(request_id, end, self.now())
        if decisions:
            self._apply(decisions)

    def resize(self, pool: str, capacity: int) -> None:
        """The pool has `capacity` slots now."""
        self._apply(self.core.resize(pool, capacity, self.now()))

    def close(self) -> None:
        """Set no more timers."""
        if self._timer is not None:
            self._timer.cancel()

    def _apply(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            future = self._waiting.pop(decision.subject, None)
            if future is None or future.done():
                continue
            if decision.action is Action.ADMIT:
                future.set_result(None)
            elif decision.action is Action.REJECT:
                future.set_exception(Refused(decision.reason))
        if self._waiting:
            self._set_timer()

    def _set_timer(self) -> None:
        """Be woken at the core's next deadline. A timer that rings earlier is left alone: it sets the next one."""
        deadline = self.core.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        delay = to_seconds(deadline - self.now()) + 0.001  # the loop may ring a millisecond early
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._apply(self.core.advance(self.now()))
