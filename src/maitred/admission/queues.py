"""The queue of one lane: who is next, and whose time is up.

First come, first served; or, once tenants have weights, shared fairly among them (start-time fair queueing: each tenant's line
has a virtual time that grows by cost/weight with everyone served, and the line that is least far goes next; one that comes back
from idleness starts at the present, so it has saved nothing up, or where it had got to, if that is further).

Waiters stand in lines: one for everybody, or one per tenant where tenants have weights or where the tenant may have only so
many in flight, so that it can be passed over while it has them. A heap knows the line whose turn it is. Whoever was preempted
and is to be tried again goes before everybody.

Any waiter may leave from the middle at once, without a trace. All wait equally long at most, so whose time is up next is the
oldest, and only those who joined later than they came (back from a slot, or after a victim that did not leave in time) are
looked up in a heap of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from maitred.admission.tenants import TenantAccount
from maitred.admission.ticket import Ticket
from maitred.core.request import RequestId
from maitred.core.units import Micros

_ALL_TENANTS = ""
_VIRTUAL_TIME_UNIT: Final = 10**12
"""How far a tenant of weight 1 gets by a cost of 1. Whole numbers: floats would stand still once they are large enough."""
_MAX_IDLE_TENANTS: Final = 1024
"""So many tenants without a line are remembered. None of them owes more than the one request that was served last."""


class SequenceNumbers:
    """Numbers for those who queue, or take a slot, in all pools of a core: who has the smaller one came first, or came back."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first = self._last = 0

    def next_back(self) -> int:
        self._last += 1
        return self._last

    def next_front(self) -> int:
        """Before everybody; less than 0."""
        self._first -= 1
        return self._first


class _TenantQueue:
    """Waiters who can only be served one after another."""

    __slots__ = ("account", "heap_entry", "name", "virtual_time", "waiting")

    def __init__(self, name: str, account: TenantAccount | None, virtual_time: int) -> None:
        self.name = name
        self.account = account
        """The account of a tenant that may be passed over while it is at its limit."""
        self.virtual_time = virtual_time
        """How far it has been served, in cost by weight."""
        # OrderedDict, not dict: a dict finds its first key by walking over those deleted before it.
        self.waiting: OrderedDict[RequestId, Ticket] = OrderedDict()
        self.heap_entry = 0
        """Its valid entry in the heap; 0: it is passed over."""

    @property
    def head(self) -> Ticket:
        return next(iter(self.waiting.values()))


class LaneQueue:
    """Waiters of one lane. Every operation is O(log lines) at most, amortised."""

    __slots__ = (
        "_count",
        "_heap",
        "_idle_virtual_times",
        "_last_entry",
        "_late_joiners",
        "_sequence_numbers",
        "_tenant_queues",
        "_virtual_time",
        "_waiting",
        "_weights",
    )

    def __init__(self, sequence_numbers: SequenceNumbers, weights: Mapping[str, float] | None = None) -> None:
        """`weights` by tenant, 1 for others; None: first come, first served."""
        self._sequence_numbers = sequence_numbers
        self._weights = weights
        self._count = 0
        self._waiting: OrderedDict[RequestId, Ticket] = OrderedDict()
        """All, but for those who joined late, in the order in which they came."""
        self._late_joiners: list[tuple[Micros, int, Ticket]] = []
        """Those who joined late, a heap by age; who does not wait any more is dropped when it comes up."""
        self._tenant_queues: dict[str, _TenantQueue] = {}
        self._heap: list[tuple[int, int, _TenantQueue]] = []
        self._last_entry = 0
        self._virtual_time = 0
        """The virtual time of the line served last."""
        self._idle_virtual_times: OrderedDict[str, int] = OrderedDict()
        """Where tenants have got to whose line is empty, if that is ahead of the clock."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        """Everybody, in no particular order."""
        for line in self._tenant_queues.values():
            yield from line.waiting.values()

    def push(self, ticket: Ticket) -> None:
        """To the end of the line."""
        ticket.sequence_number = self._sequence_numbers.next_back()
        self.restore(ticket)

    def push_front(self, ticket: Ticket) -> None:
        """Before everybody."""
        ticket.sequence_number = self._sequence_numbers.next_front()
        line = self._append(ticket)
        line.waiting.move_to_end(ticket.id, last=False)
        self._push_entry(line)

    def restore(self, ticket: Ticket) -> None:
        """One who had his turn in another queue. To be called in the order of turns."""
        line = self._append(ticket)
        if len(line.waiting) == 1:
            self._push_entry(line)

    def peek(self) -> Ticket | None:
        """Who is next, among those whose tenant is not at its limit."""
        heap = self._heap
        while heap:
            _, entry, line = heap[0]
            if entry == line.heap_entry:
                if line.account is None or not line.account.at_limit:
                    return line.head
                line.heap_entry = 0
            heappop(heap)
        return None

    def serve(self, ticket: Ticket) -> None:
        """Serve one, whose tenant's line moves on by its cost. One who came back had its turn before: it moves nobody on."""
        if self._weights is not None and ticket.sequence_number > 0:
            line = self._tenant_queues[self._queue_name(ticket)]
            self._virtual_time = max(self._virtual_time, line.virtual_time)
            line.virtual_time += int(max(1, ticket.cost) * _VIRTUAL_TIME_UNIT / self._weights.get(ticket.tenant, 1.0))
        self.remove(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a waiter out, wherever it stands. Raises KeyError if it does not wait here."""
        line = self._tenant_queues[self._queue_name(ticket)]
        led = line.head is ticket
        del line.waiting[ticket.id]
        self._count -= 1
        self._waiting.pop(ticket.id, None)
        if not line.waiting:
            self._drop_empty(line)
        elif led and line.heap_entry:
            self._push_entry(line)

    def unblock_tenant(self, tenant: str) -> None:
        """The tenant is below its limit again."""
        line = self._tenant_queues.get(tenant)
        if line is not None and not line.heap_entry:
            self._push_entry(line)

    def oldest(self) -> Ticket | None:
        """Whose time is up next."""
        first = next(iter(self._waiting.values()), None)
        while self._late_joiners and not self._contains(self._late_joiners[0][2]):
            heappop(self._late_joiners)
        if not self._late_joiners:
            return first
        late = self._late_joiners[0][2]
        return late if first is None or late.submitted_at <= first.submitted_at else first

    def _contains(self, ticket: Ticket) -> bool:
        line = self._tenant_queues.get(self._queue_name(ticket))
        return line is not None and line.waiting.get(ticket.id) is ticket

    def _append(self, ticket: Ticket) -> _TenantQueue:
        """At the end of a line."""
        self._count += 1
        if ticket.sequence_number < 0 or ticket.queued_at > ticket.submitted_at:
            self._last_entry += 1
            heappush(self._late_joiners, (ticket.submitted_at, self._last_entry, ticket))
        else:
            self._waiting[ticket.id] = ticket
        line = self._queue_of(ticket)
        line.waiting[ticket.id] = ticket
        return line

    def _queue_name(self, ticket: Ticket) -> str:
        share = ticket.tenant_account
        if self._weights is not None or (share is not None and share.max_in_flight is not None):
            return ticket.tenant
        return _ALL_TENANTS

    def _queue_of(self, ticket: Ticket) -> _TenantQueue:
        name = self._queue_name(ticket)
        line = self._tenant_queues.get(name)
        if line is None:
            line = self._tenant_queues[name] = _TenantQueue(
                name, ticket.tenant_account, max(self._virtual_time, self._idle_virtual_times.pop(name, 0))
            )
        return line

    def _drop_empty(self, line: _TenantQueue) -> None:
        """Nobody waits in it."""
        line.heap_entry = 0
        del self._tenant_queues[line.name]
        if not self._tenant_queues:  # the end of a busy spell: nobody owes anybody
            self._virtual_time = 0
            self._idle_virtual_times.clear()
            self._heap.clear()
        elif self._weights is not None and line.virtual_time > self._virtual_time:
            self._idle_virtual_times[line.name] = line.virtual_time
            if len(self._idle_virtual_times) > _MAX_IDLE_TENANTS:
                self._idle_virtual_times.popitem(last=False)

    def _push_entry(self, line: _TenantQueue) -> None:
        """Its head, or how far it is, has changed."""
        turn = line.head.sequence_number
        key = line.virtual_time if self._weights is not None and turn > 0 else turn
        self._last_entry += 1
        line.heap_entry = self._last_entry
        heappush(self._heap, (key, line.heap_entry, line))
        if len(self._heap) > 64 + 4 * len(self._tenant_queues):
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].heap_entry]
            heapify(self._heap)
