"""The queue of one lane: which request is next, and which has waited longest.

Requests wait in one queue for all tenants, first come first served. Two things give a tenant a queue of its own:
weights, and a limit of what it may have in flight, because its requests are passed over while the tenant is at its
limit.

With weights the lane is shared by start-time fair queueing. Each tenant queue has a virtual time, which grows by cost /
weight with each request that is served, and the queue with the smallest virtual time is served next:

    tenant   weight   requests (cost 6)   virtual time after being served 0, 1, 2, 3 times
    a        1        a1 a2 a3            0   6   12   18
    b        2        b1 b2 b3            0   3    6    9

    served in the order   a1 b1 b2 a2 b3 a3      (equal virtual times: the queue that reached its own first)

A tenant with an empty queue resumes at the virtual time of the lane, or at its own if that is larger.

The cost is an estimate, by limits that clients set. When the request has ended, its tenant is charged for the tokens that it
had instead (`settle`), unless the lane was idle meanwhile.

A reload that leaves the weights as they are leaves the virtual times, too. With other weights all tenants begin anew.

A request that was preempted and is tried again goes before all others of its lane.

Any request may leave from the middle. All have the same timeout, so the one that times out first is the oldest.
Requests mostly join in the order of their submission, so the oldest one is the first of an ordered dict. Only a request
that joins later than it was submitted (after a preemption, or after a victim that did not leave in time) is kept in a
heap by age.

Compiled (`tools/compile.py`), because a class that is not cannot inherit from the compiled `LazyHeap`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from typing import Final

from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import Ticket
from maitred.core.lazy_heap import IndexedHeap, LazyHeap
from maitred.core.request import RequestId
from maitred.core.units import Micros

_ALL_TENANTS = ""
_VIRTUAL_TIME_UNIT: Final = 10**12
"""Virtual time of a cost of 1 at a weight of 1. Whole numbers, because a float stops growing once it is large enough."""
_MAX_IDLE_TENANTS: Final = 1024
"""The number of virtual times that are remembered of tenants without waiting requests. A tenant that is forgotten gains the
cost of a request."""


class SequenceNumbers:
    """Numbers that order requests in all pools of a core: the smaller number goes first."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first = self._last = 0

    def next_back(self) -> int:
        """Return a number behind all others; more than 0."""
        self._last += 1
        return self._last

    def next_front(self) -> int:
        """Return a number before all others; less than 0."""
        self._first -= 1
        return self._first


class _TenantQueue:
    """Requests that are served one after another: of one tenant, or of all."""

    __slots__ = ("account", "entry", "head", "name", "number", "virtual_time", "waiting")

    head: Ticket
    """The first one, since the queue was last given its place: with each new first one it is given another."""

    def __init__(self, name: str, account: TenantAccount | None, virtual_time: int) -> None:
        self.name = name
        self.account = account
        """The account of its tenant, which is passed over while it is at its limit; or None if there is no account."""
        self.virtual_time = virtual_time
        """The cost that has been served, divided by the weight of the tenant."""
        # OrderedDict, not dict: to find its first key, a dict walks over all keys that were deleted before it.
        self.waiting: OrderedDict[RequestId, Ticket] = OrderedDict()
        self.number = 0
        """The serial number of its place in the serving order, which orders equal virtual times."""
        self.entry = 0
        """`number` if it has an entry in the heap, or 0 if it has none, because its tenant is at its limit."""


class _ServingOrder(LazyHeap[tuple[int, int, _TenantQueue]]):
    """Tenant queues in the order in which they are served next. Equal keys go in the order in which they were placed."""

    __slots__ = ("_by_virtual_time", "_num_places", "entries")

    def __init__(self, *, by_virtual_time: bool) -> None:
        super().__init__()
        self._by_virtual_time = by_virtual_time
        self._num_places = 0
        self.entries = self._heap
        """The heap itself, so that its first entry, which is mostly live, can be examined without a call."""

    def _is_live(self, entry: tuple[int, int, _TenantQueue]) -> bool:
        return entry[1] == entry[2].entry

    def place(self, queue: _TenantQueue) -> None:
        """Give a queue its place, which is new, or has changed with its head or its virtual time."""
        self._num_places = serial = self._num_places + 1
        heap, former, queue.number, queue.entry = self._heap, queue.entry, serial, serial
        queue.head = next(iter(queue.waiting.values()))
        key = self._key_of(queue)
        # Mostly a queue is placed again because it was the first one and has just been served. Its entry is overwritten
        # then: that costs one pass through the heap instead of two, and leaves no stale entry.
        if former and heap[0][1] == former:
            heapreplace(heap, (key, serial, queue))
            return
        heappush(heap, (key, serial, queue))
        if former:
            self.mark_stale()

    def put_back(self, queue: _TenantQueue) -> None:
        """Return a queue to its place, if it has lost its entry."""
        # With the number that it had: when a queue loses its entry depends on how often a driver looks, which must not change
        # the order of equal virtual times.
        if not queue.entry:
            queue.entry = queue.number
            heappush(self._heap, (self._key_of(queue), queue.number, queue))

    def remove(self, queue: _TenantQueue) -> None:
        """Remove a queue, if it is there."""
        if queue.entry:
            queue.entry = 0
            self.mark_stale()

    def _key_of(self, queue: _TenantQueue) -> int:
        number = queue.head.sequence_number
        # A request that is tried again has a number below 0, and so goes before every virtual time.
        return queue.virtual_time if self._by_virtual_time and number > 0 else number

    def first_within_limit(self) -> Ticket | None:
        """Return the first request of the queue that is served next, or None. Those before it lose their entries: their tenants
        are at the limit."""
        heap = self._heap
        while heap:
            _, serial, queue = heap[0]
            if serial != queue.entry:
                self._num_stale -= 1
            else:
                if queue.account is None or queue.account.has_room(queue.head.sequences):
                    return queue.head
                # Its entry goes, or every look would pass it again; `put_back_tenant` gives the queue a new one.
                queue.entry = 0
            heappop(heap)
        return None


class LaneQueue:
    """The waiting requests of one lane. Every operation is O(log tenants) at most, amortised."""

    __slots__ = (
        "_count",
        "_idle_virtual_times",
        "_late_joiners",
        "_period",
        "_sequence_numbers",
        "_serving_order",
        "_tenant_queues",
        "_virtual_time",
        "_waiting",
        "_weights",
        "entries",
    )

    def __init__(self, sequence_numbers: SequenceNumbers, weights: Mapping[str, float] | None = None) -> None:
        """`weights` are by tenant, 1 for tenants that are not named, or None for first come, first served."""
        self._sequence_numbers = sequence_numbers
        self._weights = weights
        self._count = 0
        self._waiting: OrderedDict[RequestId, Ticket] = OrderedDict()
        """All requests but late joiners, in the order of their submission."""
        self._late_joiners: IndexedHeap[RequestId, Micros, Ticket] = IndexedHeap()
        """Requests that joined later than they were submitted, oldest first."""
        self._tenant_queues: dict[str, _TenantQueue] = {}
        self._serving_order = _ServingOrder(by_virtual_time=weights is not None)
        """The tenant queues, but for those that are passed over because of a limit."""
        self.entries = self._serving_order.entries
        """Their entries, some of which may be stale; if there are none, `peek` returns None."""
        self._period = 1
        """The number of times that the lane has been idle, and 1: what was charged before is no debt any more."""
        self._virtual_time = 0
        """The virtual time of the tenant queue that was served last."""
        self._idle_virtual_times: OrderedDict[str, int] = OrderedDict()
        """The virtual time of tenants with an empty queue, where it is ahead of that of the lane."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        """Yield all requests, in no particular order."""
        for queue in self._tenant_queues.values():
            yield from queue.waiting.values()

    def push(self, ticket: Ticket) -> None:
        """Add a request behind all others."""
        ticket.sequence_number = self._sequence_numbers.next_back()
        self.restore(ticket)

    def push_front(self, ticket: Ticket) -> None:
        """Add a request before all others."""
        ticket.sequence_number = self._sequence_numbers.next_front()
        queue = self._append(ticket)
        queue.waiting.move_to_end(ticket.id, last=False)
        self._serving_order.place(queue)

    def restore(self, ticket: Ticket) -> None:
        """Add a request that has its sequence number from another queue. To be called in the order of these numbers."""
        queue = self._append(ticket)
        if len(queue.waiting) == 1:
            self._serving_order.place(queue)

    def inherit_from(self, former: LaneQueue) -> None:
        """Take over how much each tenant has been served, from a queue with the same weights whose requests wait here now."""
        self._period, self._virtual_time = former._period, former._virtual_time
        self._idle_virtual_times, before = former._idle_virtual_times, former._tenant_queues
        for name, queue in self._tenant_queues.items():
            queue.virtual_time = before[name].virtual_time if name in before else self._resumed_at(name)
        # Equal virtual times go in the order of the places, so the order that there was stays.
        for queue in sorted(self._tenant_queues.values(), key=lambda q: (q.name not in before, _number_of(before.get(q.name)))):
            self._serving_order.place(queue)

    def peek(self) -> Ticket | None:
        """Return the request that is next, of tenants below their limits, or None."""
        entries = self._serving_order.entries
        if not entries:
            return None
        _, serial, queue = entries[0]
        if serial == queue.entry and queue.account is None:
            return queue.head
        return self._serving_order.first_within_limit()

    def holds_back(self, ticket: Ticket) -> bool:
        """Return whether a newcomer must not pass the requests of its tenant that wait, of which the first one is too large for
        the limit of the tenant now: smaller ones would keep it waiting for ever."""
        account = ticket.tenant_account
        return account is not None and account.max_in_flight is not None and ticket.tenant in self._tenant_queues

    def serve(self, ticket: Ticket) -> None:
        """Remove a request that gets a slot, and charge its tenant for it. A request that is tried again was charged before."""
        queue = self._tenant_queues[self._queue_name(ticket)]
        if self._weights is not None and ticket.sequence_number > 0:
            # The lane stands where this request began, and not where it ends: a tenant that joins now is not put behind a
            # cost that another tenant has just run up.
            if queue.virtual_time > self._virtual_time:  # noqa: PLR1730 - max() would cost as much as all of the rest
                self._virtual_time = queue.virtual_time
            # At least 1: requests that cost nothing would keep their tenant first for ever.
            ticket.charged, ticket.charged_in = max(1, ticket.cost), self._period
            queue.virtual_time += self._virtual_cost(ticket, ticket.charged)
            ticket.charged_until = queue.virtual_time
        self._remove_from(queue, ticket)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Charge the tenant of a request that has ended for the tokens that it had, in place of those that were expected."""
        if self._weights is None or not ticket.charged or ticket.charged_in != self._period:
            return
        change = self._virtual_cost(ticket, tokens - ticket.charged)
        ticket.charged = 0
        queue = self._tenant_queues.get(ticket.tenant)
        if queue is not None:
            queue.virtual_time += change
            self._serving_order.place(queue)
            return
        # Nothing of the tenant waits. What is remembered of it is only what is ahead of the lane.
        virtual_time = self._idle_virtual_times.pop(ticket.tenant, ticket.charged_until) + change
        self._remember_idle(ticket.tenant, virtual_time)

    def _virtual_cost(self, ticket: Ticket, tokens: int) -> int:
        weight = 1.0 if self._weights is None else self._weights.get(ticket.tenant, 1.0)
        return int(tokens * _VIRTUAL_TIME_UNIT / weight)

    def remove(self, ticket: Ticket) -> None:
        """Remove a request from any place. Raises KeyError if it does not wait here."""
        self._remove_from(self._tenant_queues[self._queue_name(ticket)], ticket)

    def _remove_from(self, queue: _TenantQueue, ticket: Ticket) -> None:
        was_head = queue.head is ticket
        del queue.waiting[ticket.id]
        self._count -= 1
        if self._waiting.pop(ticket.id, None) is None:
            self._late_joiners.remove(ticket.id)
        if not queue.waiting:
            self._drop_empty(queue)
        elif was_head:
            # Also without an entry: if its tenant is still at the limit, it loses the entry again.
            self._serving_order.place(queue)

    def put_back_tenant(self, tenant: str) -> None:
        """Put the queue of a tenant back into the serving order, if it has left it because the tenant was at its limit."""
        queue = self._tenant_queues.get(tenant)
        if queue is not None:
            self._serving_order.put_back(queue)

    def oldest(self) -> Ticket | None:
        """Return the request that was submitted first, or None if none waits."""
        first = next(iter(self._waiting.values()), None)
        if len(self._waiting) == self._count:
            return first
        late = self._late_joiners.peek()
        if first is None or late is None:
            return first or late
        return late if late.submitted_at <= first.submitted_at else first

    def _append(self, ticket: Ticket) -> _TenantQueue:
        self._count += 1
        # `_waiting` is sorted by age only as long as every request in it has joined when it was submitted.
        if ticket.sequence_number < 0 or ticket.queued_at > ticket.submitted_at:
            self._late_joiners.push(ticket.id, ticket.submitted_at, ticket)
        else:
            self._waiting[ticket.id] = ticket
        queue = self._queue_of(ticket)
        queue.waiting[ticket.id] = ticket
        return queue

    def _queue_name(self, ticket: Ticket) -> str:
        account = ticket.tenant_account
        if self._weights is not None or (account is not None and account.max_in_flight is not None):
            return ticket.tenant
        return _ALL_TENANTS

    def _queue_of(self, ticket: Ticket) -> _TenantQueue:
        name = self._queue_name(ticket)
        queue = self._tenant_queues.get(name)
        if queue is None:
            queue = self._tenant_queues[name] = _TenantQueue(name, ticket.tenant_account, self._resumed_at(name))
        return queue

    def _resumed_at(self, name: str) -> int:
        """Return the virtual time at which a tenant without waiting requests goes on."""
        # A tenant saves nothing up while it is idle, and still pays for a request that has just been served.
        return max(self._virtual_time, self._idle_virtual_times.pop(name, 0))

    def _drop_empty(self, queue: _TenantQueue) -> None:
        self._serving_order.remove(queue)
        del self._tenant_queues[queue.name]
        if not self._tenant_queues:  # The lane is idle, so no tenant owes anything to another.
            self._virtual_time = 0
            self._idle_virtual_times.clear()
            self._period += 1
        elif self._weights is not None:
            self._remember_idle(queue.name, queue.virtual_time)

    def _remember_idle(self, name: str, virtual_time: int) -> None:
        if virtual_time > self._virtual_time:
            self._idle_virtual_times[name] = virtual_time
            if len(self._idle_virtual_times) > _MAX_IDLE_TENANTS:
                self._idle_virtual_times.popitem(last=False)


def _number_of(queue: _TenantQueue | None) -> int:
    return 0 if queue is None else queue.number
