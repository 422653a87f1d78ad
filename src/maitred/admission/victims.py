"""Preemption's two parties: who may be made to go, and who waits for somebody to be gone.

A victim is of a lower class and has shown its client nothing; the lowest class goes first, and in it the newest, which has the
least work to lose. Promoted requests and those that were victims once are left alone.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from maitred.admission.rules import LANES
from maitred.admission.ticket import State, Ticket
from maitred.request import RequestId

_ADMITTED: Final = State.ADMITTED  # members of enums are slow to look up
_LOOK: Final = 32
"""So many of each lane are looked at when not every slot would do: where they are charged by their tokens."""


class Takeable:
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

    def newest(self, lane: int, units: int) -> Ticket | None:
        """The newest of the lowest lane below `lane` whose slot is at least so large, of the newest `_LOOK` in each."""
        for lower in range(lane):
            if self.lanes[lower]:
                for ticket in islice(reversed(self.lanes[lower].values()), _LOOK):
                    if ticket.charge >= units:
                        return ticket
        return None


class Awaiting:
    """Preemptors whose victims have not left yet, by lane, oldest first."""

    __slots__ = ("count", "lanes")

    def __init__(self) -> None:
        self.lanes: list[OrderedDict[RequestId, Ticket]] = [OrderedDict() for _ in LANES]
        self.count = 0

    def add(self, ticket: Ticket) -> None:
        self.count += 1
        self.lanes[ticket.lane][ticket.id] = ticket
        if ticket.share is not None:
            ticket.share.awaiting += 1

    def remove(self, ticket: Ticket) -> None:
        """Its victim, if it is still there, leaves for nobody in particular."""
        self.count -= 1
        del self.lanes[ticket.lane][ticket.id]
        if ticket.share is not None:
            ticket.share.awaiting -= 1
        victim, ticket.other = ticket.other, None
        if victim is not None:
            victim.other = None

    def first(self, lane: int) -> Ticket | None:
        return next(iter(self.lanes[lane].values())) if self.lanes[lane] else None

    def ready(self, lane: int) -> Ticket | None:
        """The first whose tenant is not at its limit."""
        return next((t for t in self.lanes[lane].values() if t.share is None or not t.share.at_limit), None)

    def any_from(self, lane: int) -> bool:
        """Whether somebody of this lane or a more urgent one is here."""
        return any(self.lanes[lane:])
