"""Whose work in flight may be stopped for one that is more urgent: sheddable requests that have shown their clients nothing."""

from __future__ import annotations

from collections import OrderedDict

from maitred.admission.ticket import State, Ticket
from maitred.request import RequestId


class Sheddable:
    """Those in flight, by priority, in the order in which they went in."""

    def __init__(self) -> None:
        self._by_priority: dict[int, OrderedDict[RequestId, Ticket]] = {}

    def add(self, ticket: Ticket) -> None:
        """One that has just gone in, if it may become a victim at all. Who was one before is left alone."""
        if ticket.state is State.ADMITTED and ticket.sheddable and not ticket.retried:
            self._by_priority.setdefault(ticket.slo_priority, OrderedDict())[ticket.id] = ticket

    def discard(self, ticket: Ticket) -> None:
        of_priority = self._by_priority.get(ticket.slo_priority)
        if of_priority is not None and of_priority.pop(ticket.id, None) is not None and not of_priority:
            del self._by_priority[ticket.slo_priority]

    def last_of_lowest(self) -> Ticket | None:
        """Of the lowest priority, the one that went in last: it has the least work to lose."""
        if not self._by_priority:
            return None
        return next(reversed(self._by_priority[min(self._by_priority)].values()))
