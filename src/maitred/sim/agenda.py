"""The agenda of the virtual world: what is due when, as one heap of (time, kind, whom).

At one instant the kinds come in this order, and within a kind whom it concerns: never the order in which entries were pushed,
for that depends on how many steps were skipped.

    arrival  <  admission decides  <  routing  <  deadline of one on the way  <  admission's timer
             <  KV has come  <  enters its wait queue  <  an instance's event  <  a sample is taken  <  steps begin

So whatever enters an instance at t joins the step that begins at t, and a step that ends at t has freed its room by then. What
decides about requests (all that comes before the instances) precedes what happens in instances at that instant, as in BLIS.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappush
from typing import Final

from maitred.units import Micros


class Kind(IntEnum):
    """What is due, and whom the entry names."""

    ARRIVAL = 0
    """A request, by its id."""
    DECISION = 1
    """A request on its way, by the number of its station; ROUTING, TRANSFER and ENTRY likewise."""
    ROUTING = 2
    DEADLINE = 3
    """A request, by its id."""
    ADMISSION = 4
    TRANSFER = 5
    ENTRY = 6
    INSTANCE = 7
    """By its index."""
    SAMPLE = 8


ARRIVAL: Final = Kind.ARRIVAL
INSTANCE: Final = Kind.INSTANCE
"""The two that come for every request: members of enums are slow to look up."""


class Agenda:
    """The heap, and the time."""

    __slots__ = ("heap", "now", "turn")

    def __init__(self) -> None:
        self.heap: list[tuple[Micros, Kind, int]] = []
        self.now: Micros = 0
        self.turn: tuple[Micros, int] = (-1, 0)
        """When it was an instance's turn for the last time, and of those at that instant the last index."""

    def push(self, at: Micros, kind: Kind, whom: int = 0) -> None:
        heappush(self.heap, (at, kind, whom))
