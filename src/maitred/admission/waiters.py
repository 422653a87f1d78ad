"""Who waits for the slots of one model, and until when.

A waiter stands in the queue of its lane; or it is a preemptor, who found no queue and awaits its victim's slot, and stands in
none. Within a lane preemptors go first.

Nobody waits for ever: who queues has the timeout of its lane, counted from when it came (also when it is tried again), and a
preemptor the budget of preemption. What becomes of it then, its pool says.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.admission.forecast import Forecast
from maitred.admission.queues import LaneQueue, Turns
from maitred.admission.rules import LANES, PoolRules
from maitred.admission.starving import Starving
from maitred.admission.ticket import State, Ticket
from maitred.admission.victims import Awaiting
from maitred.units import Micros

_AWAITING = State.AWAITING  # members of enums are slow to look up


class Waiters:
    """Everybody who waits, by lane. `forecasts` (by lane) are told who joins and who leaves."""

    __slots__ = ("_budget", "_forecasts", "_sizes", "_timeouts", "awaiting", "queued", "queues", "starving")

    def __init__(self, rules: PoolRules, turns: Turns, forecasts: Sequence[Forecast]) -> None:
        self.queues = [LaneQueue(turns, rules.weights) for _ in LANES]
        self.queued = 0
        """How many stand in them."""
        self.awaiting = Awaiting()
        self.starving = Starving(self.queues, rules.lanes)
        self._sizes = [lane.queue_size for lane in rules.lanes]
        self._timeouts = [lane.timeout for lane in rules.lanes]
        self._budget = rules.budget
        self._forecasts = forecasts

    def queue_full(self, lane: int) -> bool:
        """Whether no more may queue."""
        return len(self.queues[lane]) >= self._sizes[lane]

    def head(self, lane: int) -> Ticket | None:
        """Who is next of one lane: a preemptor before those who queue, as he found no queue."""
        if self.awaiting.lanes[lane]:
            first = self.awaiting.ready(lane)
            if first is not None:
                return first
        return self.queues[lane].peek()

    # Coming and leaving.

    def join(self, ticket: Ticket, now: Micros) -> None:
        """To the end of its queue."""
        queue = self._begin(ticket, now)
        queue.push(ticket)
        self.starving.joined(ticket)

    def rejoin(self, ticket: Ticket, now: Micros) -> None:
        """Before all of its queue: it was a victim, and is to be tried again."""
        queue = self._begin(ticket, now)
        queue.push_front(ticket)
        self.starving.joined(ticket)

    def adopt(self, ticket: Ticket) -> None:
        """One who has waited under other rules, in the state in which it is; those who queue, in the order they stand in."""
        if ticket.state is _AWAITING:
            self.awaiting.add(ticket)
        else:
            queue = self._begin(ticket, ticket.queued_at)
            queue.restore(ticket)
            self.starving.joined(ticket)

    def serve(self, ticket: Ticket, now: Micros) -> None:
        """It leaves its queue for a slot: its tenant has had its turn."""
        self.queued -= 1
        self.queues[ticket.lane].take(ticket)
        ticket.totals.queue_wait.observe(now - ticket.queued_at)
        self._forecasts[ticket.lane].moved(now)

    def leave(self, ticket: Ticket, now: Micros) -> None:
        """It leaves its queue for anything else."""
        self.queued -= 1
        self.queues[ticket.lane].remove(ticket)
        ticket.totals.queue_wait.observe(now - ticket.queued_at)
        self._forecasts[ticket.lane].left(now)

    def unblock(self, tenant: str) -> None:
        """The tenant is below its limit again."""
        for queue in self.queues:
            queue.unblock(tenant)

    def _begin(self, ticket: Ticket, now: Micros) -> LaneQueue:
        queue = self.queues[ticket.lane]
        if not queue:
            self._forecasts[ticket.lane].began(now)
        ticket.queued_at = now
        self.queued += 1
        return queue

    # Time.

    def time_of(self, ticket: Ticket) -> Micros:
        """When its time is up."""
        if ticket.state is _AWAITING:
            return ticket.submitted_at + self._budget
        return ticket.submitted_at + self._timeouts[ticket.lane]

    def next_time(self) -> Micros | None:
        """When that of the first of them is; None: nobody waits."""
        times: list[Micros] = []
        for queue, timeout in zip(self.queues, self._timeouts, strict=True):
            if (oldest := queue.oldest()) is not None:
                times.append(oldest.submitted_at + timeout)
        if self.awaiting.count:
            times += [first.submitted_at + self._budget for lane in LANES if (first := self.awaiting.first(lane)) is not None]
        return min(times, default=None)

    def overdue(self, lane: int, now: Micros) -> Ticket | None:
        """One in the queue whose time is up."""
        oldest = self.queues[lane].oldest()
        return oldest if oldest is not None and oldest.submitted_at + self._timeouts[lane] <= now else None

    def overdue_preemptor(self, lane: int, now: Micros) -> Ticket | None:
        """One whose victim has not left in time."""
        first = self.awaiting.first(lane)
        return first if first is not None and first.submitted_at + self._budget <= now else None
