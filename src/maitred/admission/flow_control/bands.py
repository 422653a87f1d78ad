"""Who waits at one priority, and who of them is next.

Waiters stand in lines, one for all or one for each tenant (`Lines`). A line goes by arrival, or, with `slo-deadline`, by when
the first token should come (those of whom nobody says that, last), then by arrival.

Anybody may leave from the middle: his place in the heap is left empty, and dropped when it comes up, or when too many are.

All who wait for one model, in bands of equal priority; which bands may go in, and who of them is next.

    ceiling(i) = 1 - i · (1 - usage_limit_threshold) / (n - 1)        for the i-th most urgent of n bands, from 0

While the saturation is at the ceiling of a band or above, nobody of it, or of the bands below, goes in. So with a threshold
below 1 the less urgent leave room for the more urgent before there is none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from maitred.admission.flow_control.config import DispatchOrder
from maitred.admission.rules import FairnessPolicy, FlowControlRules
from maitred.admission.ticket import Ticket
from maitred.core.request import RequestId

FlowOrder: TypeAlias = tuple[float, int]
"""Smaller goes first; unique among those who wait."""
_SHARED_FLOW = ""
_UNNAMED_TENANT = "default"
"""The tenant of those who name none (BLIS)."""


def ttft_deadline(ticket: Ticket) -> float:
    """When its first token should come; never, if nobody says."""
    return inf if ticket.slo_target is None else ticket.submitted_at + ticket.slo_target


class _FlowQueue:
    """Waiters who are served one after another."""

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[FlowOrder, Ticket]] = []
        self._waiting: dict[RequestId, FlowOrder] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: Ticket, order: FlowOrder) -> None:
        self._waiting[ticket.id] = order
        heappush(self._heap, (order, ticket))

    def remove(self, ticket: Ticket) -> None:
        del self._waiting[ticket.id]
        if len(self._heap) > 64 + 2 * len(self._waiting):
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def peek(self) -> Ticket:
        while not self._is_live(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][1]

    def _is_live(self, entry: tuple[FlowOrder, Ticket]) -> bool:
        place, ticket = entry
        return self._waiting.get(ticket.id) == place


class PriorityBand:
    """The waiters of one priority."""

    def __init__(self, priority: int, rules: FlowControlRules) -> None:
        self.priority = priority
        self._by_deadline = rules.config.dispatch_order == "slo-deadline"
        self._fairness = rules.fairness
        self._all: OrderedDict[RequestId, Ticket] = OrderedDict()
        """As they came to wait."""
        self._flows: dict[str, _FlowQueue] = {}
        self._flow_names: list[str] = []
        """Of the lines, in order."""
        self._last_served: str | None = None
        """Whose turn it was last."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._all.values())

    def add(self, ticket: Ticket) -> None:
        name = self._flow_of(ticket)
        line = self._flows.get(name)
        if line is None:
            line = self._flows[name] = _FlowQueue()
            insort(self._flow_names, name)
        self._all[ticket.id] = ticket
        line.add(ticket, (ttft_deadline(ticket) if self._by_deadline else 0, ticket.sequence_number))

    def remove(self, ticket: Ticket) -> None:
        name = self._flow_of(ticket)
        line = self._flows[name]
        del self._all[ticket.id]
        line.remove(ticket)
        if not line:
            del self._flows[name]
            del self._flow_names[bisect_left(self._flow_names, name)]

    def take(self, ticket: Ticket) -> None:
        """It goes in: the turn passes to the next tenant."""
        self._last_served = self._flow_of(ticket)
        self.remove(ticket)

    def peek(self) -> Ticket | None:
        """Who is next; None: nobody waits."""
        return self._flows[self._next_flow()].peek() if self._flows else None

    def newest(self) -> Ticket | None:
        """Who came last to wait."""
        return next(reversed(self._all.values()), None)

    def _next_flow(self) -> str:
        """Whose line it is the turn of."""
        match self._fairness:
            case FairnessPolicy.GLOBAL_STRICT:
                return _SHARED_FLOW
            case FairnessPolicy.OLDEST_TENANT:
                return self._flow_of(next(iter(self._all.values())))
            case FairnessPolicy.ROUND_ROBIN_RESTARTING if self._last_served not in self._flows:
                return self._flow_names[0]
        after = 0 if self._last_served is None else bisect_right(self._flow_names, self._last_served)
        return self._flow_names[after % len(self._flow_names)]

    def _flow_of(self, ticket: Ticket) -> str:
        return _SHARED_FLOW if self._fairness is FairnessPolicy.GLOBAL_STRICT else ticket.tenant or _UNNAMED_TENANT


def dispatch_rank(ticket: Ticket, order: DispatchOrder) -> tuple[float, int]:
    """The smaller goes first, of those who are first in their bands."""
    match order:
        case "priority":
            return -ticket.slo_priority, ticket.sequence_number
        case "fifo":
            return 0, ticket.sequence_number
        case "slo-deadline":
            return ttft_deadline(ticket), ticket.sequence_number


class PriorityBands:
    """The bands, most urgent first."""

    def __init__(self, rules: FlowControlRules) -> None:
        self._rules = rules
        self._by_priority: dict[int, PriorityBand] = {}
        self._bands: list[PriorityBand] = []
        self._waiting = 0
        for priority in rules.initial_priorities:
            self.band(priority)

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for band in self._bands for ticket in band)

    def band(self, priority: int) -> PriorityBand:
        """The band of that priority. One that is made stays."""
        band = self._by_priority.get(priority)
        if band is None:
            band = self._by_priority[priority] = PriorityBand(priority, self._rules)
            insort(self._bands, band, key=lambda b: -b.priority)
        return band

    def add(self, ticket: Ticket) -> None:
        self._waiting += 1
        self.band(ticket.slo_priority).add(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._waiting -= 1
        self.band(ticket.slo_priority).remove(ticket)

    def take(self, ticket: Ticket) -> None:
        """It goes in."""
        self._waiting -= 1
        self.band(ticket.slo_priority).take(ticket)

    def next_ticket(self, saturation: float) -> Ticket | None:
        """Who may go in next; None: nobody waits who may."""
        candidates, order = self._band_heads(saturation), self._rules.band_order
        if order == "priority":  # as they come
            return next(candidates, None)
        return min(candidates, key=lambda ticket: dispatch_rank(ticket, order), default=None)

    def first_non_sheddable(self) -> Ticket | None:
        """The first of the most urgent who may not be turned away for the sake of others."""
        urgent = (band.peek() for band in self._bands if band.priority >= 0)
        return next((ticket for ticket in urgent if ticket is not None), None)

    def find_displaceable(self, priority: int) -> Ticket | None:
        """Who makes room for one of `priority`: the newest of the lowest sheddable band, if that is below it."""
        for band in reversed(self._bands):
            if band.priority >= min(priority, 0):
                return None
            if (newest := band.newest()) is not None:
                return newest
        return None

    def _band_heads(self, saturation: float) -> Iterator[Ticket]:
        """Of each band that may go in, its first."""
        span, steps = 1.0 - self._rules.config.usage_limit_threshold, max(1, len(self._bands) - 1)
        for i, band in enumerate(self._bands):
            if saturation >= 1.0 - i * span / steps:
                return
            if (first := band.peek()) is not None:
                yield first
