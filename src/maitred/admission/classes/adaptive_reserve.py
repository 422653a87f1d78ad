"""Adaptive reservations: of what a class may reserve, only what its arrivals of the last minutes needed is kept free.

A fixed reservation costs throughput whenever it idles: 5 of 16 slots are a third of a small engine. Most of it is not needed.
Slots become free all the time, and the most urgent class gets the next one; and where victims are tried again
(`on_preempt: retry`), a newcomer takes the slot of one at once. What must be kept free is what neither of the two covers in
time. This is measured, without a model of arrivals or of the engine:

    missing   slots that the class has taken and that were not given back since: +1 at an arrival, -1 at each slot that any
              request of the pool frees, never below 0. It is the queue of a server that serves when a slot is freed
    need      of an arrival: `missing` after it, less the slots freed within the next 20 ms; 0 if it could have preempted
              a victim that is tried again, or if more slots are idle than all classes reserve

    headroom  the smallest number that was enough for 99 % of the arrivals of the last 5 minutes; if the class has any and may
              preempt, at least the slots beyond what the engines run (`lead_watch`)

    held back = max(floor - in flight, min(reserved - in flight, headroom)), and never less than 0

So the reservation is bounded by what is configured, and `reserved_floor` is kept in any case. In the first 10 s all of it is
kept, unless 20 arrivals are known before. A class without arrivals, in those 10 s or in 5 minutes, has only its floor: its next
request preempts, or waits for the next slot. The headroom is set anew at most once a second, as waiting requests are
considered.

Requests may have been taken over from another core (`adoption`), whose arrivals are not known here. Then the 10 s count from
the submission of the oldest one, but for the classes that have requests among them: the next scheduler of a busy fleet does not
keep slots free once more for classes that nobody uses.

*Example.* 16 slots, 5 of them reserved for chats. All bulk is streamed, so nothing can be preempted, and a bulk request ends
every 40 ms. Chats come every 300 ms. Each finds nothing missing and leaves 1. For half of them a slot is freed within 20 ms, so
their need is 0, and that of the others is 1: one slot is kept free. If bulk is not streamed, each chat could preempt, and the
headroom is 0. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from maitred.admission.pool.slots import ALL_UNITS, Slots
from maitred.admission.terms.rules import LANES, PoolRules
from maitred.admission.waiting.preemption import PreemptionCandidates
from maitred.core.units import MILLISECOND, SECOND, Micros

TOLERATED_WAIT: Final = 20 * MILLISECOND
"""A slot that is freed within this time comes soon enough: an engine takes as long for a step or two."""
COVERED_SHARE: Final = 0.99
"""Share of the arrivals for which the headroom must have been enough. Not all of them: the need of a single one would keep
slots idle for 5 minutes. XXX: a choice. To be measured: the TTFT p99 of chats, and what bulk loses, by this share."""
PERIOD: Final = 30 * SECOND
NUM_PERIODS: Final = 10
"""Arrivals are remembered for this many periods. Fewer forget the burst of a class that comes every few minutes; more keep
what a class needed that has changed its ways."""
REVIEW_INTERVAL: Final = SECOND
"""The shortest time between two reviews, each of which adds up the needs of all periods for each class."""
LEARNING_TIME: Final = 10 * SECOND
"""For how long all that is configured is kept at first: with nothing known of the arrivals, the chats of a first flood
waited."""
ENOUGH_ARRIVALS: Final = 20
"""With fewer, all that is configured is kept. XXX: a guess; the first arrivals of a class say little. To be
measured: after how many what recorded classes need stays the same."""


class ArrivalNeeds:
    """The needs of the arrivals of one class, in slots."""

    __slots__ = ("_by_period", "_freed", "_missing", "_pending", "_period_ends_at")

    def __init__(self) -> None:
        self._by_period: deque[Counter[int]] = deque([Counter()], NUM_PERIODS)
        """How many arrivals had which need, the present period last."""
        self._period_ends_at: Micros = 0
        self._missing = 0
        """Units that are missing."""
        self._freed = 0
        """Units that have been freed for this class since the beginning."""
        self._pending: deque[tuple[Micros, int]] = deque()
        """Arrivals whose need is not known yet: until when, and what `_freed` must be then for a need of 0."""

    def on_arrival(self, units: int, now: Micros) -> None:
        """Note a request that takes or wants `units`, and must do with what is free."""
        self._missing += units
        self._pending.append((now + TOLERATED_WAIT, self._freed + self._missing))

    def on_covered_arrival(self) -> None:
        """Note a request that needs nothing to be kept free."""
        self._by_period[-1][0] += 1

    @property
    def is_missing(self) -> bool:
        """Whether a slot is missing that the next one freed would be."""
        return self._missing > 0

    @property
    def next_settle_at(self) -> Micros:
        """When `settle` has something to do."""
        return min(self._pending[0][0], self._period_ends_at) if self._pending else self._period_ends_at

    def on_freed(self, units: int) -> int:
        """Note that `units` were freed. Return how many of them were not missing here."""
        taken = min(units, self._missing)
        self._missing -= taken
        self._freed += taken
        return units - taken

    def on_plenty(self) -> None:
        """Note that nothing is missing, because more is idle than is reserved."""
        # As if so many had been freed, which the arrivals that are pending need no more.
        self._freed += self._missing
        self._missing = 0

    def settle(self, now: Micros, units_per_slot: int) -> None:
        """Work out the needs that are known by `now`. To be called before anything else that happens at `now`."""
        if now >= self._period_ends_at:
            # Periods in which nothing came count, too: needs are forgotten by time, and not by the number of arrivals.
            elapsed = (now - self._period_ends_at) // PERIOD + 1 if self._period_ends_at else 1
            for _ in range(min(elapsed, NUM_PERIODS)):
                self._by_period.append(Counter())
            self._period_ends_at = now - now % PERIOD + PERIOD
        while self._pending and self._pending[0][0] <= now:
            units = max(0, self._pending.popleft()[1] - self._freed)
            self._by_period[-1][-(-units // units_per_slot)] += 1  # in whole slots, rounded up

    @property
    def num_known(self) -> int:
        """Arrivals with a need that is known."""
        return sum(of_period.total() for of_period in self._by_period)

    @property
    def headroom(self) -> int:
        """The smallest number of slots that was enough for COVERED_SHARE of the arrivals."""
        needs: Counter[int] = Counter()
        for of_period in self._by_period:
            needs.update(of_period)
        uncovered = int((1 - COVERED_SHARE) * needs.total())
        for need in sorted(needs, reverse=True):
            uncovered -= needs[need]
            if uncovered < 0:
                return need
        return 0


class AdaptiveReserve:
    """The headroom of the classes of one pool. It is set in `slots`."""

    def __init__(self, rules: PoolRules, slots: Slots, victims: PreemptionCandidates) -> None:
        self._rules, self._slots, self._victims = rules, slots, victims
        self._needs = [ArrivalNeeds() for _ in LANES]
        self._missing_units = False
        """Whether any class may miss a slot. While none does, a slot that is freed changes nothing."""
        self._settle_at: Micros = 0
        """When a need becomes known, or a period ends."""
        self._review_at: Micros = 0
        self._began_at: Micros | None = None
        """When the first request came to this core."""
        self._submitted_at: Micros | None = None
        """When the oldest request was submitted that was adopted."""
        self._adopted_lanes = [False for _ in LANES]
        """The lanes of those that were adopted."""

    def inherit_from(self, previous: AdaptiveReserve) -> None:
        """Take over what is known of the arrivals, unless slots cost something else now."""
        if previous._slots.units_per_slot != self._slots.units_per_slot:
            return
        self._needs, self._began_at = previous._needs, previous._began_at
        self._submitted_at, self._adopted_lanes = previous._submitted_at, previous._adopted_lanes
        self._missing_units, self._settle_at = previous._missing_units, previous._settle_at
        self._slots.headroom = previous._slots.headroom

    def on_adopted(self, lane: int, submitted_at: Micros) -> None:
        """Note a request that another core has let in."""
        self._adopted_lanes[lane] = True
        if self._submitted_at is None or submitted_at < self._submitted_at:
            self._submitted_at = submitted_at

    def on_arrival(self, lane: int, units: int, now: Micros) -> None:
        """Note that a request has come that its tenant's limit does not hold back, before it takes a slot."""
        slots, needs = self._slots, self._needs[lane]
        if self._began_at is None:
            self._began_at = now
        if not slots.reserved[lane]:
            return
        if now >= self._settle_at:
            self._settle(now)
        # So much is idle that this one takes nothing that is reserved: whatever the headroom is, it would not have been asked.
        if slots.idle > sum(slots.reserved):
            if self._missing_units:
                for other in self._needs:
                    other.on_plenty()
                self._missing_units = False
            needs.on_covered_arrival()
        elif self._rules.lanes[lane].can_preempt and self._rules.retries_victims and self._victims.newest_below(lane, units):
            needs.on_covered_arrival()
        else:
            needs.on_arrival(units, now)
            self._missing_units = True
            self._settle_at = min(self._settle_at, now + TOLERATED_WAIT)

    def on_freed(self, units: int, now: Micros) -> None:
        """Note that a request has given back `units`."""
        if now >= self._settle_at:
            self._settle(now)
        if not self._missing_units:
            return
        units = min(units, self._slots.idle)  # After a shrink, what is given back may be gone.
        for needs in reversed(self._needs):  # The most urgent class has the next slot, whoever freed it.
            units = needs.on_freed(units)
        self._missing_units = any(needs.is_missing for needs in self._needs)

    def review(self, now: Micros) -> None:
        """Set the headroom anew, if that is due."""
        if now < self._review_at:
            return
        self._review_at = now + REVIEW_INTERVAL
        self._settle(now)
        if self._began_at is None and self._submitted_at is not None:
            self._began_at = now
        self._slots.headroom = [
            ALL_UNITS if self._is_new(lane, now) and needs.num_known < ENOUGH_ARRIVALS else self._headroom(lane, needs)
            for lane, needs in enumerate(self._needs)
        ]

    def _is_new(self, lane: int, now: Micros) -> bool:
        """Return whether a lane may have had no time yet for its arrivals."""
        since = self._began_at
        if since is not None and self._submitted_at is not None and not self._adopted_lanes[lane]:
            since = min(since, self._submitted_at)
        return since is None or now < since + LEARNING_TIME

    def _headroom(self, lane: int, needs: ArrivalNeeds) -> int:
        """Return the units to be kept free for a lane. That the lead is idle costs nothing."""
        lead = self._slots.lead if self._rules.lanes[lane].can_preempt and needs.num_known else 0
        return max(lead, needs.headroom * self._slots.units_per_slot)

    def _settle(self, now: Micros) -> None:
        """Work out the needs that are known by now."""
        for needs in self._needs:
            needs.settle(now, self._slots.units_per_slot)
        self._settle_at = min(needs.next_settle_at for needs in self._needs)
