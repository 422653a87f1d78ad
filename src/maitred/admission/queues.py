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

from maitred.admission.tenants import Tenant
from maitred.admission.ticket import Ticket
from maitred.request import RequestId
from maitred.units import Micros

_EVERYBODY = ""
_COST: Final = 10**12
"""How far a tenant of weight 1 gets by a cost of 1. Whole numbers: floats would stand still once they are large enough."""
_DEBTS: Final = 1024
"""So many tenants without a line are remembered. None of them owes more than the one request that was served last."""


class Turns:
    """Numbers for those who queue, or take a slot, in all pools of a core: who has the smaller one came first, or came back."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first = self._last = 0

    def last(self) -> int:
        self._last += 1
        return self._last

    def first(self) -> int:
        """Before everybody; less than 0."""
        self._first -= 1
        return self._first


class _Line:
    """Waiters who can only be served one after another."""

    __slots__ = ("entry", "name", "share", "virtual", "waiting")

    def __init__(self, name: str, share: Tenant | None, virtual: int) -> None:
        self.name = name
        self.share = share
        """The account of a tenant that may be passed over while it is at its limit."""
        self.virtual = virtual
        """How far it has been served, in cost by weight."""
        # OrderedDict, not dict: a dict finds its first key by walking over those deleted before it.
        self.waiting: OrderedDict[RequestId, Ticket] = OrderedDict()
        self.entry = 0
        """Its valid entry in the heap; 0: it is passed over."""

    @property
    def head(self) -> Ticket:
        return next(iter(self.waiting.values()))


class LaneQueue:
    """Waiters of one lane. Every operation is O(log lines) at most, amortised."""

    __slots__ = (
        "_clock",
        "_count",
        "_entries",
        "_heap",
        "_late",
        "_lines",
        "_owed",
        "_turns",
        "_waiting",
        "_weights",
    )

    def __init__(self, turns: Turns, weights: Mapping[str, float] | None = None) -> None:
        """`weights` by tenant, 1 for others; None: first come, first served."""
        self._turns = turns
        self._weights = weights
        self._count = 0
        self._waiting: OrderedDict[RequestId, Ticket] = OrderedDict()
        """All, but for those who joined late, in the order in which they came."""
        self._late: list[tuple[Micros, int, Ticket]] = []
        """Those who joined late, a heap by age; who does not wait any more is dropped when it comes up."""
        self._lines: dict[str, _Line] = {}
        self._heap: list[tuple[int, int, _Line]] = []
        self._entries = 0
        self._clock = 0
        """The virtual time of the line served last."""
        self._owed: OrderedDict[str, int] = OrderedDict()
        """Where tenants have got to whose line is empty, if that is ahead of the clock."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        """Everybody, in no particular order."""
        for line in self._lines.values():
            yield from line.waiting.values()

    def push(self, ticket: Ticket) -> None:
        """To the end of the line."""
        ticket.turn = self._turns.last()
        self.restore(ticket)

    def push_front(self, ticket: Ticket) -> None:
        """Before everybody."""
        ticket.turn = self._turns.first()
        line = self._stand(ticket)
        line.waiting.move_to_end(ticket.id, last=False)
        self._rank(line)

    def restore(self, ticket: Ticket) -> None:
        """One who had his turn in another queue. To be called in the order of turns."""
        line = self._stand(ticket)
        if len(line.waiting) == 1:
            self._rank(line)

    def peek(self) -> Ticket | None:
        """Who is next, among those whose tenant is not at its limit."""
        heap = self._heap
        while heap:
            _, entry, line = heap[0]
            if entry == line.entry:
                if line.share is None or not line.share.at_limit:
                    return line.head
                line.entry = 0
            heappop(heap)
        return None

    def take(self, ticket: Ticket) -> None:
        """Serve one, whose tenant's line moves on by its cost. One who came back had its turn before: it moves nobody on."""
        if self._weights is not None and ticket.turn > 0:
            line = self._lines[self._name(ticket)]
            self._clock = max(self._clock, line.virtual)
            line.virtual += int(max(1, ticket.cost) * _COST / self._weights.get(ticket.tenant, 1.0))
        self.remove(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a waiter out, wherever it stands. Raises KeyError if it does not wait here."""
        line = self._lines[self._name(ticket)]
        led = line.head is ticket
        del line.waiting[ticket.id]
        self._count -= 1
        self._waiting.pop(ticket.id, None)
        if not line.waiting:
            self._close(line)
        elif led and line.entry:
            self._rank(line)

    def unblock(self, tenant: str) -> None:
        """The tenant is below its limit again."""
        line = self._lines.get(tenant)
        if line is not None and not line.entry:
            self._rank(line)

    def oldest(self) -> Ticket | None:
        """Whose time is up next."""
        first = next(iter(self._waiting.values()), None)
        while self._late and not self._has(self._late[0][2]):
            heappop(self._late)
        if not self._late:
            return first
        late = self._late[0][2]
        return late if first is None or late.submitted_at <= first.submitted_at else first

    def _has(self, ticket: Ticket) -> bool:
        line = self._lines.get(self._name(ticket))
        return line is not None and line.waiting.get(ticket.id) is ticket

    def _stand(self, ticket: Ticket) -> _Line:
        """At the end of a line."""
        self._count += 1
        if ticket.turn < 0 or ticket.queued_at > ticket.submitted_at:
            self._entries += 1
            heappush(self._late, (ticket.submitted_at, self._entries, ticket))
        else:
            self._waiting[ticket.id] = ticket
        line = self._line(ticket)
        line.waiting[ticket.id] = ticket
        return line

    def _name(self, ticket: Ticket) -> str:
        share = ticket.share
        if self._weights is not None or (share is not None and share.max_in_flight is not None):
            return ticket.tenant
        return _EVERYBODY

    def _line(self, ticket: Ticket) -> _Line:
        name = self._name(ticket)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(name, ticket.share, max(self._clock, self._owed.pop(name, 0)))
        return line

    def _close(self, line: _Line) -> None:
        """Nobody waits in it."""
        line.entry = 0
        del self._lines[line.name]
        if not self._lines:  # the end of a busy spell: nobody owes anybody
            self._clock = 0
            self._owed.clear()
            self._heap.clear()
        elif self._weights is not None and line.virtual > self._clock:
            self._owed[line.name] = line.virtual
            if len(self._owed) > _DEBTS:
                self._owed.popitem(last=False)

    def _rank(self, line: _Line) -> None:
        """Its head, or how far it is, has changed."""
        turn = line.head.turn
        key = line.virtual if self._weights is not None and turn > 0 else turn
        self._entries += 1
        line.entry = self._entries
        heappush(self._heap, (key, line.entry, line))
        if len(self._heap) > 64 + 4 * len(self._lines):
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].entry]
            heapify(self._heap)
