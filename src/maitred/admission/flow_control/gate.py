"""All who wait for one model, in bands of equal priority; which bands may go in, and who of them is next.

    ceiling(i) = 1 - i · (1 - usage_limit_threshold) / (n - 1)        for the i-th most urgent of n bands, from 0

While the saturation is at the ceiling of a band or above, nobody of it, or of the bands below, goes in. So with a threshold
below 1 the less urgent leave room for the more urgent before there is none.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from maitred.admission.flow_control.band import Band, deadline_of
from maitred.admission.flow_control.config import DispatchOrder
from maitred.admission.flow_control.rules import FlowRules
from maitred.admission.ticket import Ticket


def rank(ticket: Ticket, order: DispatchOrder) -> tuple[float, int]:
    """The smaller goes first, of those who are first in their bands."""
    match order:
        case "priority":
            return -ticket.slo_priority, ticket.turn
        case "fifo":
            return 0, ticket.turn
        case "slo-deadline":
            return deadline_of(ticket), ticket.turn


class Gate:
    """The bands, most urgent first."""

    def __init__(self, rules: FlowRules) -> None:
        self._rules = rules
        self._by_priority: dict[int, Band] = {}
        self._bands: list[Band] = []
        self._count = 0
        for priority in rules.priorities:
            self.band(priority)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for band in self._bands for ticket in band)

    def band(self, priority: int) -> Band:
        """The band of that priority. One that is made stays."""
        band = self._by_priority.get(priority)
        if band is None:
            band = self._by_priority[priority] = Band(priority, self._rules)
            insort(self._bands, band, key=lambda b: -b.priority)
        return band

    def add(self, ticket: Ticket) -> None:
        self._count += 1
        self.band(ticket.slo_priority).add(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._count -= 1
        self.band(ticket.slo_priority).remove(ticket)

    def serve(self, ticket: Ticket) -> None:
        """It goes in."""
        self._count -= 1
        self.band(ticket.slo_priority).serve(ticket)

    def next(self, saturation: float) -> Ticket | None:
        """Who may go in next; None: nobody waits who may."""
        candidates, order = self._candidates(saturation), self._rules.band_order
        if order == "priority":  # as they come
            return next(candidates, None)
        return min(candidates, key=lambda ticket: rank(ticket, order), default=None)

    def not_sheddable(self) -> Ticket | None:
        """The first of the most urgent who may not be turned away for the sake of others."""
        urgent = (band.first() for band in self._bands if band.priority >= 0)
        return next((ticket for ticket in urgent if ticket is not None), None)

    def displaceable(self, priority: int) -> Ticket | None:
        """Who makes room for one of `priority`: the newest of the lowest sheddable band, if that is below it."""
        for band in reversed(self._bands):
            if band.priority >= min(priority, 0):
                return None
            if (newest := band.newest()) is not None:
                return newest
        return None

    def _candidates(self, saturation: float) -> Iterator[Ticket]:
        """Of each band that may go in, its first."""
        span, steps = 1.0 - self._rules.limits.usage_limit_threshold, max(1, len(self._bands) - 1)
        for i, band in enumerate(self._bands):
            if saturation >= 1.0 - i * span / steps:
                return
            if (first := band.first()) is not None:
                yield first
