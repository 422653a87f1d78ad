"""Preemption's two parties: who may be made to go, and who waits for somebody to be gone.

A victim is of a lower class and has shown its client nothing; the lowest class goes first, and in it the newest, which has the
least work to lose. Promoted requests and those that were victims once are left alone.

Whose work in flight may be stopped for one that is more urgent: sheddable requests that have shown their clients nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from maitred.admission.rules import LANES
from maitred.admission.ticket import Ticket, TicketState
from maitred.core.request import RequestId

_ADMITTED: Final = TicketState.ADMITTED  # members of enums are slow to look up
_MAX_EXAMINED: Final = 32
"""So many of each lane are looked at when not every slot would do: where they are charged by their tokens."""


class PreemptionCandidates:
    """Those in flight who may become victims, by lane, in the order of admission. Every operation is O(1)."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        # OrderedDict, not dict: from its end a dict walks over what was deleted there
        self.lanes: list[OrderedDict[RequestId, Ticket]] = [OrderedDict() for _ in LANES]

    def add(self, ticket: Ticket) -> None:
        """One that has just been admitted, if it may become a victim at all."""
        if ticket.state is _ADMITTED and not (ticket.promoted or ticket.retried):
            self.lanes[ticket.lane][ticket.id] = ticket

    def discard(self, ticket: Ticket) -> None:
        self.lanes[ticket.lane].pop(ticket.id, None)

    def newest_below(self, lane: int, units: int) -> Ticket | None:
        """The newest of the lowest lane below `lane` whose slot is at least so large, of the newest `_MAX_EXAMINED` in each."""
        for lower in range(lane):
            if self.lanes[lower]:
                for ticket in islice(reversed(self.lanes[lower].values()), _MAX_EXAMINED):
                    if ticket.slot_units >= units:
                        return ticket
        return None


class PendingPreemptors:
    """Preemptors whose victims have not left yet, by lane, oldest first."""

    __slots__ = ("count", "lanes")

    def __init__(self) -> None:
        self.lanes: list[OrderedDict[RequestId, Ticket]] = [OrderedDict() for _ in LANES]
        self.count = 0

    def add(self, ticket: Ticket) -> None:
        self.count += 1
        self.lanes[ticket.lane][ticket.id] = ticket
        if ticket.tenant_account is not None:
            ticket.tenant_account.awaiting_victims += 1

    def remove(self, ticket: Ticket) -> None:
        """Its victim, if it is still there, leaves for nobody in particular."""
        self.count -= 1
        del self.lanes[ticket.lane][ticket.id]
        if ticket.tenant_account is not None:
            ticket.tenant_account.awaiting_victims -= 1
        victim, ticket.preemption_peer = ticket.preemption_peer, None
        if victim is not None:
            victim.preemption_peer = None

    def oldest(self, lane: int) -> Ticket | None:
        return next(iter(self.lanes[lane].values())) if self.lanes[lane] else None

    def first_within_limit(self, lane: int) -> Ticket | None:
        """The first whose tenant is not at its limit."""
        return next((t for t in self.lanes[lane].values() if t.tenant_account is None or not t.tenant_account.at_limit), None)

    def any_at_or_above(self, lane: int) -> bool:
        """Whether somebody of this lane or a more urgent one is here."""
        return any(self.lanes[lane:])


class EvictionCandidates:
    """Those in flight, by priority, in the order in which they went in."""

    def __init__(self) -> None:
        self._by_priority: dict[int, OrderedDict[RequestId, Ticket]] = {}

    def add(self, ticket: Ticket) -> None:
        """One that has just gone in, if it may become a victim at all. Who was one before is left alone."""
        if ticket.state is TicketState.ADMITTED and ticket.sheddable and not ticket.retried:
            self._by_priority.setdefault(ticket.slo_priority, OrderedDict())[ticket.id] = ticket

    def discard(self, ticket: Ticket) -> None:
        of_priority = self._by_priority.get(ticket.slo_priority)
        if of_priority is not None and of_priority.pop(ticket.id, None) is not None and not of_priority:
            del self._by_priority[ticket.slo_priority]

    def newest_of_lowest(self) -> Ticket | None:
        """Of the lowest priority, the one that went in last: it has the least work to lose."""
        if not self._by_priority:
            return None
        return next(reversed(self._by_priority[min(self._by_priority)].values()))
