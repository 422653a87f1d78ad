"""Lead: the slots beyond what the engines run at once, and how soon they must be free again.

A place that becomes free in an engine finds its next request sooner if that is there already. So learned slots are a few more
than the limit, where places become free all the time (`learned_slots.limit_search`). With `reserve: adaptive` these are kept
for the classes that may preempt. Such a newcomer takes one of them at once, and has the next place that becomes free in its
engine. So it needs no victim, whose work would be lost; and that the lead is idle most of the time costs nothing, because all
that the engines can run is in use.

If places become free too slowly for once, the newcomer would stand in the engine's queue. So it is watched: if no slot of the
pool was freed for it, and its response has not started 2 ms after its admission, the newest victim is stopped, as for a
newcomer that finds no slot. The victim's slot is then part of the lead again. A newcomer that finds the lead in use preempts at
once, and is watched as well: the victim's place in the engine goes to the request that waits there already.

*Example.* 17 slots, of which 1 is lead; 16 bulk requests run, and one of them ends every 12 ms. Chat c1 takes the lead at 0. A
bulk request ends at 1 ms: c1 has its place, and the lead is free again. c2 comes at 30 ms, and nothing ends until 32 ms: the
newest bulk request is stopped, and c2 has its place. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from maitred.admission.ticket import Ticket, TicketState
from maitred.core.units import MILLISECOND, Micros

_ADMITTED: Final = TicketState.ADMITTED  # members of enums are slow to look up

LEAD_TIME: Final = 2 * MILLISECOND
"""How long a request may wait for a place in its engine. On a real vLLM of 16 sequences that ended 77 requests per second, 5 ms
cost chats 1 ms more than 2 ms (p50) and 29 ms at p99, for 1 % more bulk; 0.5 ms saved nothing."""


class LeadWatch:
    """The requests of one pool that have taken a slot of the lead, and wait in their engine perhaps."""

    __slots__ = ("_watched",)

    def __init__(self) -> None:
        self._watched: deque[Ticket] = deque()
        """In the order of admission, the oldest first."""

    def add(self, ticket: Ticket) -> None:
        """Watch a request that has just taken a slot of the lead."""
        self._watched.append(ticket)

    def on_freed(self) -> None:
        """Note that a slot was freed: the oldest one has a place in its engine."""
        if self._watched:
            self._watched.popleft()

    @property
    def next_due_at(self) -> Micros | None:
        """Return when the oldest one has waited long enough, µs, or None if none is watched."""
        return self._watched[0].admitted_at + LEAD_TIME if self._watched else None

    def pop_overdue(self, now: Micros) -> Ticket | None:
        """Return a request that has waited long enough and has no response, and watch it no more; or None if there is none."""
        while self._watched and self._watched[0].admitted_at + LEAD_TIME <= now:
            ticket = self._watched.popleft()
            if ticket.state is _ADMITTED:
                return ticket
        return None
