"""Who waits at one priority, and who of them is next.

Waiters stand in lines, one for all or one for each tenant (`Lines`). A line goes by arrival, or, with `slo-deadline`, by when
the first token should come (those of whom nobody says that, last), then by arrival.

Anybody may leave from the middle: his place in the heap is left empty, and dropped when it comes up, or when too many are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from maitred.admission.flow_control.rules import FlowRules, Lines
from maitred.admission.ticket import Ticket
from maitred.request import RequestId

Place: TypeAlias = tuple[float, int]
"""Smaller goes first; unique among those who wait."""
_EVERYBODY = ""
_NAMELESS = "default"
"""The tenant of those who name none (BLIS)."""


def deadline_of(ticket: Ticket) -> float:
    """When its first token should come; never, if nobody says."""
    return inf if ticket.slo_target is None else ticket.submitted_at + ticket.slo_target


class _Line:
    """Waiters who are served one after another."""

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[Place, Ticket]] = []
        self._waiting: dict[RequestId, Place] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: Ticket, place: Place) -> None:
        self._waiting[ticket.id] = place
        heappush(self._heap, (place, ticket))

    def remove(self, ticket: Ticket) -> None:
        del self._waiting[ticket.id]
        if len(self._heap) > 64 + 2 * len(self._waiting):
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapify(self._heap)

    def first(self) -> Ticket:
        while not self._stands(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][1]

    def _stands(self, entry: tuple[Place, Ticket]) -> bool:
        place, ticket = entry
        return self._waiting.get(ticket.id) == place


class Band:
    """The waiters of one priority."""

    def __init__(self, priority: int, rules: FlowRules) -> None:
        self.priority = priority
        self._by_deadline = rules.limits.dispatch_order == "slo-deadline"
        self._kind = rules.lines
        self._all: OrderedDict[RequestId, Ticket] = OrderedDict()
        """As they came to wait."""
        self._lines: dict[str, _Line] = {}
        self._names: list[str] = []
        """Of the lines, in order."""
        self._served: str | None = None
        """Whose turn it was last."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._all.values())

    def add(self, ticket: Ticket) -> None:
        name = self._name(ticket)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
            insort(self._names, name)
        self._all[ticket.id] = ticket
        line.add(ticket, (deadline_of(ticket) if self._by_deadline else 0, ticket.turn))

    def remove(self, ticket: Ticket) -> None:
        name = self._name(ticket)
        line = self._lines[name]
        del self._all[ticket.id]
        line.remove(ticket)
        if not line:
            del self._lines[name]
            del self._names[bisect_left(self._names, name)]

    def serve(self, ticket: Ticket) -> None:
        """It goes in: the turn passes to the next tenant."""
        self._served = self._name(ticket)
        self.remove(ticket)

    def first(self) -> Ticket | None:
        """Who is next; None: nobody waits."""
        return self._lines[self._next()].first() if self._lines else None

    def newest(self) -> Ticket | None:
        """Who came last to wait."""
        return next(reversed(self._all.values()), None)

    def _next(self) -> str:
        """Whose line it is the turn of."""
        match self._kind:
            case Lines.ONE:
                return _EVERYBODY
            case Lines.OLDEST:
                return self._name(next(iter(self._all.values())))
            case Lines.IN_TURN_ANEW if self._served not in self._lines:
                return self._names[0]
        after = 0 if self._served is None else bisect_right(self._names, self._served)
        return self._names[after % len(self._names)]

    def _name(self, ticket: Ticket) -> str:
        return _EVERYBODY if self._kind is Lines.ONE else ticket.tenant or _NAMELESS
