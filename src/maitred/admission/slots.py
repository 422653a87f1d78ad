"""Slots: the right to be in flight, and who may take the last ones.

A reservation is a floor, not a partition. What a higher class has reserved and does not use is held back from the classes
below it; what it uses is simply in flight:

    free(k) = capacity - in_flight - sum(max(0, reserved[c] - in_flight[c]) for c above k)

A class's own reservation neither limits it nor counts against it, and reservations of lower classes are never held against
a higher one. So free() never grows from a class to the one below: whoever waits in a class, nobody below has a free slot.

A fleet may be smaller than what the classes have reserved. Then each keeps the same fraction of its reservation, and at
least one slot stays unreserved, so that no class is ever locked out of an idle pool. The wishes are kept and the
reservations derived from them at every change of capacity: what a dip took, recovery gives back.

All of it counts in units: one for each slot, or, where requests are charged by their tokens, one for each token.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.admission.rules import LANES, PoolRules


def fit_reservations(wanted: Sequence[int], capacity: int, *, unit: int = 1, keeps_exact_fit: bool = False) -> list[int]:
    """Reservations that fit `capacity`, from what each lane wants (least urgent first). All in units, `unit` to a slot.

    Too many in sum: each is scaled to `floor(desired × capacity / sum)`, where what one lane desires is at most the capacity.
    Less than a slot left over: the highest lane that has some gives it up. SMG 1.13.0 does so only when the sum exceeds the
    capacity (`keeps_exact_fit`); it also locks lower classes out when a single floor does (we do not).
    """
    desired = [min(capacity, wish) for wish in wanted]
    total = sum(desired)
    exact = keeps_exact_fit and total == capacity and desired == list(wanted)
    if total <= capacity - unit or exact:
        return desired
    reserved = [wish * capacity // total if total else 0 for wish in desired] if total > capacity else desired
    missing = min(unit, capacity) - (capacity - sum(reserved))
    for lane in reversed(LANES):
        given_up = max(0, min(missing, reserved[lane]))
        reserved[lane] -= given_up
        missing -= given_up
    return reserved


class Slots:
    """How many units there are, reserved and in flight, per lane. No queues, no time."""

    __slots__ = ("capacity", "desired", "in_flight", "in_use", "reserved", "reserved_above", "units_per_slot")

    def __init__(self) -> None:
        self.capacity = 0
        self.units_per_slot = 1
        """Units that a slot has."""
        self.desired = [0] * len(LANES)
        """What the lanes would reserve."""
        self.reserved = [0] * len(LANES)
        self.reserved_above = [0] * len(LANES)
        """What all higher lanes reserve together."""
        self.in_flight = [0] * len(LANES)
        self.in_use = 0
        """The sum of `num_in_flight`. Above `capacity` after a shrink: nobody is killed, nobody enters."""

    def resize(self, slots: int, rules: PoolRules) -> None:
        """There are so many slots now; reservations follow."""
        self.units_per_slot = rules.units_per_slot
        self.capacity = slots * self.units_per_slot
        self.desired = [lane.wanted_slots(slots) * self.units_per_slot for lane in rules.lanes]
        self.reserved = fit_reservations(
            self.desired, self.capacity, unit=self.units_per_slot, keeps_exact_fit=rules.keeps_exact_fit
        )
        self.reserved_above = [sum(self.reserved[lane + 1 :]) for lane in LANES]

    @property
    def idle(self) -> int:
        """What is not in flight, reserved or not."""
        return max(0, self.capacity - self.in_use)

    def free(self, lane: int) -> int:
        """What `lane` could take now; never negative."""
        return max(0, -self.shortfall(lane, 0))

    def shortfall(self, lane: int, units: int) -> int:
        """How much of lower lanes would have to leave before `lane` could take `units`; 0 or less: nothing."""
        held = 0
        for c in range(lane + 1, len(LANES)):
            unused = self.reserved[c] - self.in_flight[c]
            if unused > 0:
                held += unused
        return units + held + self.in_use - self.capacity

    def max_units(self, lane: int) -> int:
        """What `lane` could ever take: all that higher lanes do not reserve; at least 1."""
        return max(1, self.capacity - self.reserved_above[lane])

    def fits(self, lane: int, units: int) -> bool:
        """Whether `lane` could take so many now."""
        if self.capacity - self.in_use - self.reserved_above[lane] >= units:  # whatever higher lanes use of their reservations
            return True
        return self.shortfall(lane, units) <= 0

    def take(self, lane: int, units: int = 1) -> None:
        """So much more in flight. The caller has seen `free(lane)`."""
        self.in_flight[lane] += units
        self.in_use += units

    def give_back(self, lane: int, units: int = 1) -> None:
        self.in_flight[lane] -= units
        self.in_use -= units
