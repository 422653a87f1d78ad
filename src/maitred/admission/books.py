"""The books of a pool: what became of every request, and what the pool looks like now.

arrived  = admitted + queue_full + queue_timeout + cancelled + waiting
admitted = ended + in flight
"""

from __future__ import annotations

import msgspec

from maitred.admission.vocabulary import End
from maitred.request import PriorityClass


class Totals:
    """What became of the requests of one class of one pool. Requests that have left live on here, as numbers."""

    __slots__ = ("admitted", "arrived", "cancelled", "ended", "queue_full", "queue_timeout")

    def __init__(self) -> None:
        self.arrived = 0
        self.admitted = 0
        self.queue_full = 0
        self.queue_timeout = 0
        self.cancelled = 0
        """Left while they waited."""
        self.ended = dict.fromkeys(End, 0)
        """Held a slot and gave it back."""

    def balance(self, waiting: int, in_flight: int) -> bool:
        """Every request that came is accounted for, once."""
        left = self.queue_full + self.queue_timeout + self.cancelled
        return self.arrived == self.admitted + left + waiting and self.admitted == sum(self.ended.values()) + in_flight


class ClassView(msgspec.Struct, frozen=True):
    """One class of one pool: slots and requests at this instant, and totals since the start (see Totals)."""

    waiting: int
    queue_size: int
    in_flight: int
    reserved: int
    desired: int
    """What it would reserve if the capacity allowed: more than `reserved` means that reservations were scaled down."""
    arrived: int
    admitted: int
    queue_full: int
    queue_timeout: int
    cancelled: int
    ended: dict[End, int]


class PoolView(msgspec.Struct, frozen=True):
    """One pool at this instant."""

    capacity: int
    in_flight: int
    """Above `capacity` after a shrink, until enough have ended."""
    waiting: int
    classes: dict[PriorityClass, ClassView]
    """Most urgent first."""
