"""LeadWatch: the slots beyond what the engines run at once, and how soon they must be free again.

A place that becomes free in an engine finds its next request sooner if that is there already. So learned slots are a few more
than the limit, where places become free all the time (`learned_slots.limit_search`). With `reserve: adaptive` these are kept
for the classes that may preempt. Such a newcomer takes one of them at once, and has the next place that becomes free in its
engine. So it needs no victim, whose work would be lost; and that the lead is idle most of the time costs nothing, because all
that the engines can run is in use.

If places become free too slowly for once, the newcomer would stand in the engine's queue. So it is watched: if no slot of the
pool was freed for it, and its response has not started 2 ms after its admission, the newest victim is stopped, as for a
newcomer that finds no slot. That does not depend on whether other requests wait, because it is the engine that is full. The
victim's slot is then part of the lead again. A newcomer that finds the lead in use preempts at once, and is watched as well:
the victim's place in the engine goes to the request that waits there already.

While learning probes the limit, some slots are *lent* to all classes. A newcomer then stands behind the requests that have
these, so as many victims are stopped as places must become free for it. (Only the newest hold lent slots, and are stopped
first: they stand in the engine's queue, and lose nothing.)

*Example.* 17 slots, of which 1 is lead; 16 bulk requests run, and one of them ends every 12 ms. Chat c1 takes the lead at 0. A
bulk request ends at 1 ms: c1 has its place, and the lead is free again. c2 comes at 30 ms, and nothing ends until 32 ms: the
newest bulk request is stopped, and c2 has its place. Now another slot is lent: 17 bulk requests are there, 16 of them run.
Chat c3 takes the lead, and needs two places. One becomes free within 2 ms, so one victim is stopped.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from maitred.admission.terms.ticket import Ticket, TicketState
from maitred.core.request import RequestId
from maitred.core.units import MILLISECOND, Micros

_ADMITTED: Final = TicketState.ADMITTED  # members of enums are slow to look up

LEAD_TIME: Final = 2 * MILLISECOND
"""How long a request may wait for a place in its engine. On a real vLLM of 16 sequences that ended 77 requests per second, 5 ms
cost chats 1 ms more than 2 ms (p50) and 29 ms at p99, for 1 % more bulk; 0.5 ms saved nothing."""


class _Watched:
    """A request that has no place in its engine yet, perhaps."""

    __slots__ = ("ticket", "units_ahead")

    def __init__(self, ticket: Ticket, units_ahead: int) -> None:
        self.ticket = ticket
        self.units_ahead = units_ahead
        """Units that must become free before it has its own, these included."""


class LeadWatch:
    """The requests of one pool that have taken a slot of the lead, and wait in their engine perhaps."""

    __slots__ = ("_served", "watched")

    def __init__(self) -> None:
        self._served: dict[RequestId, Ticket] = {}
        """The request for which each victim was stopped that has not left yet."""
        self.watched: deque[_Watched] = deque()
        """In the order of admission, the oldest first."""

    def add(self, ticket: Ticket, units_ahead: int) -> None:
        """Watch a request that takes a slot of the lead, and has a place once `units_ahead` have become free."""
        self.watched.append(_Watched(ticket, units_ahead))

    def on_freed(self, units: int) -> None:
        """Note that units were freed: all that are watched move up by as many."""
        for watched in self.watched:
            watched.units_ahead -= units
        while self.watched and self.watched[0].units_ahead <= 0:
            self.watched.popleft()

    def on_victim(self, victim: Ticket, overdue: Ticket) -> None:
        """Note that a victim is stopped, so that `overdue` has a place in its engine."""
        self._served[victim.id] = overdue

    def on_victim_left(self, victim: Ticket) -> None:
        """Note that a victim of whichever preemption has given its slot back."""
        self._served.pop(victim.id, None)

    def on_declined(self, victim: Ticket) -> bool:
        """Watch the request again for which a victim was stopped that keeps its slot. Return False if there is none."""
        overdue = self._served.pop(victim.id, None)
        if overdue is None:
            return False
        # In front, because it was admitted before all that are watched now, and is overdue.
        self.watched.appendleft(_Watched(overdue, victim.slot_units))
        return True

    @property
    def next_due_at(self) -> Micros | None:
        """Return when the oldest one has waited long enough, µs, or None if none is watched."""
        return self.watched[0].ticket.admitted_at + LEAD_TIME if self.watched else None

    def pop_overdue(self, now: Micros) -> tuple[Ticket, int] | None:
        """Return a request that has waited long enough and has no response, with the units that it still needs, and
        watch it no more; or None if there is none."""
        while self.watched and self.watched[0].ticket.admitted_at + LEAD_TIME <= now:
            watched = self.watched.popleft()
            if watched.ticket.state is _ADMITTED:
                return watched.ticket, watched.units_ahead
        return None
