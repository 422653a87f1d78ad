"""Bands: the waiting requests of one model, by priority; which bands may enter at a saturation, and which request is
next.

A band has the requests of one SLO priority. The most urgent of n bands has index 0:

    ceiling(i) = 1 - i · (1 - usage_limit_threshold) / (n - 1)

While the saturation is at the ceiling of a band or above, no request of it enters. Example: 5 bands and a
threshold of 0.6 have the ceilings 1.0, 0.9, 0.8, 0.7 and 0.6; at a saturation of 0.75 the first three may enter.

Within a band requests wait in flows, one for all tenants or one per tenant (`FairnessPolicy`). A flow is in the order
of arrival, or with `slo-deadline` in the order of the deadlines of first tokens (requests without one last), and then
of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import TypeAlias

from maitred.admission.terms.flow_config import DispatchOrder, FairnessPolicy
from maitred.admission.terms.rules import FlowControlRules
from maitred.admission.terms.ticket import Ticket
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId

FlowOrder: TypeAlias = tuple[float, int]
"""The smaller goes first; unique among waiting requests."""
_SHARED_FLOW = ""
_UNNAMED_TENANT = "default"
"""The tenant of requests that name none (BLIS)."""


def ttft_deadline(ticket: Ticket) -> float:
    """Return when the first token of a request should come, in µs; infinity if it has no target."""
    return inf if ticket.slo_target is None else ticket.submitted_at + ticket.slo_target


class PriorityBand:
    """The waiting requests of one priority."""

    def __init__(self, priority: int, rules: FlowControlRules) -> None:
        self.priority = priority
        self._by_deadline = rules.config.dispatch_order == "slo-deadline"
        self._fairness = rules.fairness
        self._all: OrderedDict[RequestId, Ticket] = OrderedDict()
        """In the order in which they began to wait."""
        self._flows: dict[str, IndexedHeap[RequestId, FlowOrder, Ticket]] = {}
        self._flow_names: list[str] = []
        """In alphabetical order."""
        self.last_served: str | None = None
        """The name of the flow that was served last."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._all.values())

    def add(self, ticket: Ticket) -> None:
        """Add a request that waits from now on."""
        name = self._flow_of(ticket)
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = IndexedHeap()
            insort(self._flow_names, name)
        self._all[ticket.id] = ticket
        flow.push(ticket.id, (ttft_deadline(ticket) if self._by_deadline else 0, ticket.sequence_number), ticket)

    def remove(self, ticket: Ticket) -> None:
        """Remove a request that does not wait any more."""
        name = self._flow_of(ticket)
        flow = self._flows[name]
        del self._all[ticket.id]
        flow.remove(ticket.id)
        if not len(flow):
            del self._flows[name]
            del self._flow_names[bisect_left(self._flow_names, name)]

    def take(self, ticket: Ticket) -> None:
        """Remove a request that enters: the next tenant has its turn."""
        self.last_served = self._flow_of(ticket)
        self.remove(ticket)

    def peek(self) -> Ticket | None:
        """Return the request that is next, or None if none waits."""
        return self._flows[self._next_flow()].peek() if self._flows else None

    def newest(self) -> Ticket | None:
        """Return the request that began to wait last, or None if none waits."""
        return next(reversed(self._all.values()), None)

    def _next_flow(self) -> str:
        match self._fairness:
            case FairnessPolicy.GLOBAL_STRICT:
                return _SHARED_FLOW
            case FairnessPolicy.OLDEST_TENANT:
                return self._flow_of(next(iter(self._all.values())))
            case FairnessPolicy.ROUND_ROBIN_RESTARTING if self.last_served not in self._flows:
                return self._flow_names[0]
        # The turn is kept as a name and not as an index: flows come and go, and a name that is gone still has its place.
        after = 0 if self.last_served is None else bisect_right(self._flow_names, self.last_served)
        return self._flow_names[after % len(self._flow_names)]

    def _flow_of(self, ticket: Ticket) -> str:
        return _SHARED_FLOW if self._fairness is FairnessPolicy.GLOBAL_STRICT else ticket.tenant or _UNNAMED_TENANT


def dispatch_rank(ticket: Ticket, order: DispatchOrder) -> tuple[float, int]:
    """Return the rank of a request among those that are next in their bands: the smallest enters first."""
    match order:
        case "priority":
            return -ticket.slo_priority, ticket.sequence_number
        case "fifo":
            return 0, ticket.sequence_number
        case "slo-deadline":
            return ttft_deadline(ticket), ticket.sequence_number


class PriorityBands:
    """The bands of one model, most urgent first."""

    def __init__(self, rules: FlowControlRules) -> None:
        self._rules = rules
        self._by_priority: dict[int, PriorityBand] = {}
        self._bands: list[PriorityBand] = []
        self._turns: dict[int, str | None] = {}
        """Which flow was served last in bands that there were before a reload, by priority."""
        self._waiting = 0
        for priority in rules.initial_priorities:
            self.band(priority)

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for band in self._bands for ticket in band)

    def band(self, priority: int) -> PriorityBand:
        """Return the band of a priority, which is created if need be, and then stays."""
        band = self._by_priority.get(priority)
        if band is None:
            band = self._by_priority[priority] = PriorityBand(priority, self._rules)
            band.last_served = self._turns.get(priority)
            insort(self._bands, band, key=lambda b: -b.priority)
        return band

    def inherit_from(self, previous: PriorityBands) -> None:
        """Take over whose turn it was: else each reload would serve the first tenants of the alphabet again."""
        self._turns = previous._turns | {priority: band.last_served for priority, band in previous._by_priority.items()}
        for priority, band in self._by_priority.items():
            band.last_served = self._turns.get(priority)

    def add(self, ticket: Ticket) -> None:
        """Add a request that waits from now on."""
        self._waiting += 1
        self.band(ticket.slo_priority).add(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Remove a request that does not wait any more."""
        self._waiting -= 1
        self.band(ticket.slo_priority).remove(ticket)

    def take(self, ticket: Ticket) -> None:
        """Remove a request that enters."""
        self._waiting -= 1
        self.band(ticket.slo_priority).take(ticket)

    def next_ticket(self, saturation: float) -> Ticket | None:
        """Return the request that may enter next, or None if none may."""
        candidates, order = self._band_heads(saturation), self._rules.band_order
        if order == "priority":  # The bands are in this order already.
            return next(candidates, None)
        return min(candidates, key=lambda ticket: dispatch_rank(ticket, order), default=None)

    def first_non_sheddable(self) -> Ticket | None:
        """Return the next request of the most urgent band, unless it is sheddable."""
        urgent = (band.peek() for band in self._bands if band.priority >= 0)
        return next((ticket for ticket in urgent if ticket is not None), None)

    def find_displaceable(self, priority: int) -> Ticket | None:
        """Return the request that makes room for one of `priority`: the newest of the lowest sheddable band below it,
        or None."""
        for band in reversed(self._bands):
            if band.priority >= min(priority, 0):
                return None
            if (newest := band.newest()) is not None:
                return newest
        return None

    def _band_heads(self, saturation: float) -> Iterator[Ticket]:
        """Yield the next request of each band that may enter."""
        # Ceilings of their own, so that the less urgent bands wait earlier, and leave room before there is none.
        span, steps = 1.0 - self._rules.config.usage_limit_threshold, max(1, len(self._bands) - 1)
        for i, band in enumerate(self._bands):
            if saturation >= 1.0 - i * span / steps:
                return
            if (first := band.peek()) is not None:
                yield first
