"""Slots at an engine that others use, too: several gateways, or clients that go past the gateway.

The engine's limit is not ours then, and its queue holds requests that are not ours. The rule is additive increase and
multiplicative decrease, as in TCP: while requests wait in the engine, slots shrink by our part of that queue; while none
waits, they grow slowly. So several gateways with the same rule end up with equal shares.

*Example.* Two gateways stand before an engine of 128, one with 120 slots and one with 30. 22 requests wait in the engine. The
first gateway takes back half of its part, 0.5 · 22 · 120 / 150 = 9 slots, the second 2. Both grow by 2 per look when the
queue is empty: so the difference shrinks.

Others that do not yield would leave nothing over: clients that keep the engine's queue full all the time. If the queue was
long for 10 s and we are down to half of what runs there, our slots are what runs there for 60 s: our part of the crowd.
"""

from __future__ import annotations

from typing import Final

from maitred.admission.learned_slots.signals import EngineReading, OwnLoad, PoolDemand
from maitred.core.units import SECOND, Micros

_PATIENCE: Final = 10 * SECOND
"""How long the queue of others must stand before we stand as well: other gateways that yield as we do should have yielded by
then. XXX: a guess. To be measured: how long several gateways take until none has a queue."""
_STANDING_TIME: Final = 60 * SECOND
"""Not for ever: if those others begin to yield, so do we."""
_MOST_SIGHTINGS: Final = 8
"""So the engine is ours again after six looks without strangers, however long they were there."""


class SharedEngine:
    """Whether others use an engine, and our slots while they do."""

    def __init__(self) -> None:
        self._sightings = 0
        self._most_before = 0
        self._slots: float | None = None
        self._top = 0.0
        self._calm_at: Micros = 0
        self._stands_until: Micros = 0

    def look(self, reading: EngineReading, own: OwnLoad) -> bool:
        """Return whether others use the engine: more is there than we have sent, in three looks more than not."""
        ours = max(own.most_in_flight, self._most_before)
        self._most_before = own.most_in_flight
        # 4 %, because the page and our count are of two instants. Fewer strangers than that are not noticed; what they cost is
        # not measured.
        seen = reading.running + reading.waiting - ours > max(1, 0.04 * reading.running)
        self._sightings = min(_MOST_SIGHTINGS, self._sightings + 1) if seen else max(0, self._sightings - 1)
        # XXX: 3 is a guess: one or two looks may be wrong. To be measured: how often a page shows more than was sent, without
        # strangers.
        if self._sightings < 3:
            self._slots = None
        return self._sightings >= 3

    def contends(self, now: Micros) -> bool:
        """Return whether others do not yield, so that we do not either."""
        return now < self._stands_until

    def slots(
        self, reading: EngineReading, own: OwnLoad, demand: PoolDemand, slots: int, lead: int, *, full: bool, now: Micros
    ) -> int:
        """Return our slots after a look. `slots` are those before it, `full` whether all of them are used and wanted."""
        running, waiting = reading.running, reading.waiting
        if self._slots is None:
            self._slots, self._calm_at, self._top = float(slots), now, 0.0
        share = self._slots
        # What the engine can run: the most that ran, and slowly less, because it may have shrunk.
        self._top = top = max(float(running), 0.99 * self._top)
        # A queue of a few is that of gateways that yield, each of which tries for more. XXX: a guess.
        # To be measured: what several gateways that yield leave waiting, by their number.
        if waiting <= lead + 0.15 * running:
            self._calm_at = now
        if now - self._calm_at > _PATIENCE and share <= top / 2:
            self._stands_until = now + _STANDING_TIME
        if waiting > lead + 0.02 * running:
            # From what is used, because unused slots put nothing into that queue; half of our part, because others take back
            # theirs at the same time; 3 % at least, so that the smallest shrinks, too; and never below a tenth of the engine,
            # from which we could not tell how it fares. XXX: guesses, but for the form of it. To be
            # measured: how soon the shares of several gateways are equal.
            used = min(share, max(own.in_flight, slots - demand.held))
            ours = 0.5 * (waiting - lead) * own.in_flight / (running + waiting)
            share = max(0.1 * top, used - max(0.03 * share, ours))
        elif waiting <= lead and full:
            # XXX: a sixty-fourth is a guess, as above.
            share += max(0.25, running / 64)  # The same for all gateways, whatever they have: that makes shares equal.
        if now < self._stands_until:
            share = max(share, top)
        self._slots = share
        return int(share)
