"""Slots: the right to be in flight, and which class may take the last ones.

A reservation is a floor, not a partition. What a higher class has reserved and does not use is held back from the classes
below it; what it uses is simply in flight. So each class has a ceiling, up to which it may fill the pool:

    ceiling(k) = capacity - sum(held(c) for c above k)
    held(c)    = max(0, reserved[c] - in_flight[c])

Example: 32 slots, of which `system` reserves 2 and `interactive` 8; 12 chats are in flight, and 5 bulk requests. The chats have
used their reservation, so only the 2 slots of `system` are held back from bulk: ceiling(bulk) = 30, and 13 more may enter.

A class's own reservation neither limits it nor counts against it, and reservations of lower classes are never held against a
higher one. So the ceiling never rises from a class to the one below: while a request of a class waits, no lower class has a
free slot.

A fleet may be smaller than what the classes have reserved. Then each keeps the same fraction of its reservation, and at
least one slot stays unreserved. The configured reservations are kept, and the ones in force derived from them at every change
of capacity: what a smaller fleet took, recovery gives back.

With `reserve: adaptive`, only `headroom` of what a class has reserved and does not use is held back, and its floor
(`adaptive_reserve`):

    held(c) = max(0, floor[c] - in_flight[c], min(reserved[c] - in_flight[c], headroom[c]))

A request takes a slot for each sequence that it makes in the engine: `n: 4` takes 4, a list of 16 prompts 16, and at most all
that there are. One that needs more than higher classes leave unreserved would never enter, or enter and run over what they
have reserved. So for it reservations do not count, but all slots that it needs must be idle; and once it starves
(`priority`), it makes do with those that are not reserved.

Everything is counted in units: one for each slot, or, where requests are charged by their tokens, one for each token.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from maitred.admission.terms.config import MAX_SLOTS
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.admission.terms.rules import LANES, PoolRules


def fit_reservations(wanted: Sequence[int], capacity: int, *, unit: int = 1, keeps_exact_fit: bool = False) -> list[int]:
    """Return reservations that fit `capacity`, from what each lane wants (least urgent first); in units, `unit` to a slot.

    If they are too many in sum, each is scaled to `floor(desired × capacity / sum)`, where a lane desires at most the capacity.
    If less than a slot is left over, the highest lane with a reservation gives it up. With `keeps_exact_fit` that happens only
    if the sum exceeds the capacity (SMG 1.13.0). SMG also locks lower classes out when a single floor does; we do not.

    Example: 64 and 32 wanted of 48 slots become 64 → 48 (at most the capacity), then 48 · 48 / 80 = 28 and 32 · 48 / 80 = 19.
    In sum that is 47, so one slot is left over, and it stays unreserved.
    """
    desired = [min(capacity, wish) for wish in wanted]
    total = sum(desired)
    exact = keeps_exact_fit and total == capacity and desired == list(wanted)
    if total <= capacity - unit or exact:
        return desired
    # In whole numbers, multiplied before divided, so that no rounding of floats takes or adds a slot.
    reserved = [wish * capacity // total if total else 0 for wish in desired] if total > capacity else desired
    missing = min(unit, capacity) - (capacity - sum(reserved))  # One slot is nobody's: no class is locked out of an idle pool.
    for lane in reversed(LANES):
        given_up = max(0, min(missing, reserved[lane]))
        reserved[lane] -= given_up
        missing -= given_up
    return reserved


ALL_UNITS: Final = MAX_SLOTS * MAX_SLOTS
"""More units than there ever are."""


class Slots:
    """The units of one pool, reserved and in flight, per lane. Queues and time play no part here."""

    __slots__ = (
        *("capacity", "desired", "floors", "headroom", "in_flight", "in_use", "lead", "max_units", "reserved"),
        *("reserved_above", "run", "units_per_slot"),
    )

    def __init__(self) -> None:
        self.capacity = 0
        """Units."""
        self.units_per_slot = 1
        self.desired = [0] * len(LANES)
        """Units that the lanes would reserve if the capacity allowed."""
        self.reserved = [0] * len(LANES)
        """Units that the lanes reserve."""
        self.floors = [0] * len(LANES)
        """Units that are held back for the lanes whatever `headroom` says."""
        self.headroom = [ALL_UNITS] * len(LANES)
        """The most units that are held back for the lanes beyond those they have in flight, apart from the floors."""
        self.lead = 0
        """Units of the capacity beyond what the engines run at once, for classes that may preempt (`lead_watch`)."""
        self.run = 0
        """Units that the engines run at once. What is beyond them and the lead is lent to all classes."""
        self.reserved_above = [0] * len(LANES)
        """Units that all higher lanes reserve together."""
        self.max_units = [1] * len(LANES)
        """Units that the lanes could ever take: all that higher lanes do not reserve; at least 1."""
        self.in_flight = [0] * len(LANES)
        """Units in flight."""
        self.in_use = 0
        """The sum of `in_flight`. Above `capacity` after a shrink: then requests in flight stay, and none enters."""

    def resize(self, slots: int, rules: PoolRules, lead: Lead = NO_LEAD) -> None:
        """Set the capacity, in slots, of which `lead` are beyond what the engines run, and derive the reservations from it."""
        self.units_per_slot = rules.units_per_slot
        self.capacity = slots * self.units_per_slot
        kept, lent = lead if rules.adapts_reservations else NO_LEAD
        self.lead = min(kept, slots) * self.units_per_slot
        self.run = self.capacity - self.lead - min(lent, slots) * self.units_per_slot
        self.desired = [lane.wanted_slots(slots) * self.units_per_slot for lane in rules.lanes]
        self.reserved = fit_reservations(
            self.desired, self.capacity, unit=self.units_per_slot, keeps_exact_fit=rules.keeps_exact_fit
        )
        floors = (lane.reserved_floor * self.units_per_slot for lane in rules.lanes)
        self.floors = [min(pair) for pair in zip(floors, self.reserved, strict=True)]
        self.reserved_above = [sum(self.reserved[lane + 1 :]) for lane in LANES]
        self.max_units = [max(1, self.capacity - above) for above in self.reserved_above]

    @property
    def idle(self) -> int:
        """Units that are not in flight, reserved or not."""
        return max(0, self.capacity - self.in_use)

    def free(self, lane: int) -> int:
        """Return the units that `lane` could take now; never negative."""
        return max(0, self.ceiling(lane) - self.in_use)

    def ceiling(self, lane: int) -> int:
        """Return up to how many units in flight `lane` may take one: all but what is held back for higher lanes."""
        ceiling = self.capacity
        for c in range(lane + 1, len(LANES)):
            ceiling -= self.held(c)
        return ceiling

    def shortfall(self, lane: int, units: int) -> int:
        """Return how many units of lower lanes would have to leave before `lane` could take `units`; 0 or less if none. For
        more than the lane can ever have beside the reservations, these are no hindrance, but every such unit must be idle."""
        return self.in_use + units - (self.ceiling(lane) if units <= self.max_units[lane] else self.capacity)

    def held(self, lane: int) -> int:
        """Return the units that are held back from lower lanes for `lane`."""
        unused = self.reserved[lane] - self.in_flight[lane]
        if unused <= 0:
            return 0
        return unused if unused <= self.headroom[lane] else max(self.headroom[lane], self.floors[lane] - self.in_flight[lane])

    def units_beyond(self, units: int = 0) -> int:
        """Return how many units would be in use beyond what the engines run at once, with `units` more in flight; not positive
        if none."""
        return self.in_use + units - self.run

    def num_slots(self, units: int) -> int:
        """Return the number of slots that have `units` together, rounded up."""
        return -(-units // self.units_per_slot)

    def fits(self, lane: int, units: int) -> bool:
        """Return whether `lane` could take `units` now."""
        # The usual case is settled without a loop: units are left even if higher lanes used nothing of their reservations.
        if self.capacity - self.in_use - self.reserved_above[lane] >= units:
            return True
        return self.shortfall(lane, units) <= 0

    def take(self, lane: int, units: int = 1) -> None:
        """Take units; the caller has seen that they fit."""
        self.in_flight[lane] += units
        self.in_use += units

    def give_back(self, lane: int, units: int = 1) -> None:
        """Give units back that were taken."""
        self.in_flight[lane] -= units
        self.in_use -= units

    def find_violations(self, *, keeps_exact_fit: bool) -> Iterator[str]:
        """Yield a line for each sum that does not come out. With `keeps_exact_fit` reservations may leave nothing."""
        if self.in_use != sum(self.in_flight) or min(self.in_flight) < 0:
            yield f"{self.in_use} used, but in flight {self.in_flight}"
        if sum(self.reserved) > max(0, self.capacity - (0 if keeps_exact_fit else self.units_per_slot)):
            yield f"reservations {self.reserved} leave nothing of {self.capacity}"
