"""Slots: the right to be in flight, and who may take the last ones.

A reservation is a floor, not a partition. What a higher class has reserved and does not use is held back from the classes
below it; what it uses is simply in flight:

    free(k) = capacity - in_flight - sum(max(0, reserved[c] - in_flight[c]) for c above k)

A class's own reservation neither limits it nor counts against it, and reservations of lower classes are never held against
a higher one. So free() never grows from a class to the one below: whoever waits in a class, nobody below has a free slot.

A fleet may be smaller than what the classes have reserved. Then each keeps the same fraction of its reservation, and at
least one slot stays unreserved, so that no class is ever locked out of an idle pool. The wishes are kept and the
reservations derived from them at every change of capacity: what a dip took, recovery gives back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from maitred.admission.config import ClassConfig
from maitred.request import PriorityClass

CLASSES = tuple(PriorityClass)
"""Least urgent first: a class is its own index."""
MOST_URGENT_FIRST = CLASSES[::-1]


def desired(config: ClassConfig, capacity: int) -> int:
    """Slots that a class would reserve of `capacity`: `min(capacity, max(floor, ceil(share × capacity)))`."""
    share = ceil(round(config.reserved_per_slot * capacity, 6))  # 0.07 × 100 is 7.000000000000001 in binary
    return min(capacity, max(config.reserved_floor, share))


def effective(wishes: Sequence[int], capacity: int) -> list[int]:
    """Reservations that fit `capacity`, from what each class desires (least urgent first).

    Too many in sum: each is scaled to `floor(desired × capacity / sum)`. None left over: the highest class that has one
    gives up one slot. SMG 1.13.0 does the first alone when the sum exceeds the capacity, and locks out the lower classes
    when it is equal.
    """
    total = sum(wishes)
    if total < capacity:
        return list(wishes)
    reserved = [wish * capacity // total if total else 0 for wish in wishes]
    if capacity and sum(reserved) == capacity:
        highest = max(c for c in CLASSES if reserved[c])
        reserved[highest] -= 1
    return reserved


class Slots:
    """How many slots there are, reserved and in flight, per class (index: the class). No queues, no time."""

    __slots__ = ("capacity", "in_flight", "reserved", "used")

    def __init__(self) -> None:
        self.capacity = 0
        self.reserved = [0] * len(CLASSES)
        self.in_flight = [0] * len(CLASSES)
        self.used = 0
        """The sum of `in_flight`. Above `capacity` after a shrink: nobody is killed, nobody enters."""

    def free(self, k: PriorityClass) -> int:
        """Slots that class `k` could take now; never negative."""
        held = 0
        for c in range(k + 1, len(CLASSES)):
            unused = self.reserved[c] - self.in_flight[c]
            if unused > 0:
                held += unused
        room = self.capacity - self.used - held
        return room if room > 0 else 0

    def take(self, k: PriorityClass) -> None:
        """One more in flight. The caller has seen `free(k)`."""
        self.in_flight[k] += 1
        self.used += 1

    def give_back(self, k: PriorityClass) -> None:
        self.in_flight[k] -= 1
        self.used -= 1
