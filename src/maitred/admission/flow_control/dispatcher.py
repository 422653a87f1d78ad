"""Dispatcher: who goes in, over all models.

Models may run on the same instances. So who waits for one of them competes with those who wait for the others, by one order
(`dispatch_order`), each held back by how saturated the instances are that his own model runs on. Else a busy model would take
every place that falls free, and who waits for another could wait for ever.

An attempt is made whenever somebody comes; with `dispatch: all`, whenever somebody has left, too; and at ticks, which all
models have together. There are ticks while anybody waits, where the load of the instances may change by itself or only one goes
in at each attempt; else only while somebody may be held back by one who is on his way elsewhere (see `sight`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import TYPE_CHECKING

from maitred.admission.flow_control.detectors import READERS, Gauge
from maitred.admission.flow_control.gate import rank
from maitred.admission.flow_control.rules import FlowRules
from maitred.admission.flow_control.sight import Sight
from maitred.admission.pool import Look
from maitred.admission.ticket import Ticket
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.units import Micros

if TYPE_CHECKING:
    from maitred.admission.flow_control.pool import FlowPool


class Dispatcher:
    """Of the pools of one core. `look` tells how loaded the instances of a model are."""

    def __init__(self, rules: FlowRules, look: Look) -> None:
        self.rules = rules
        self.tick: Micros | None = None
        """The next one; if it is past, nobody waited then. None: nobody need look at the clock."""
        self._look = look
        self._pools: list[FlowPool] = []

    def add(self, pool: FlowPool) -> None:
        """Decisions must not hang on the order in which models came."""
        insort(self._pools, pool, key=lambda p: p.name)

    def arrived(self, pool: FlowPool, load: FleetLoad, now: Micros) -> list[Decision]:
        """Somebody stands at the gate of `pool`, whose instances have this `load`."""
        self.wind_up(now)
        return self._attempt(Sight(self._pools, self._look, now, {pool.name: load}), now)

    def left(self, now: Micros) -> list[Decision]:
        """Somebody has left an instance, or there may be more room for another reason."""
        if self.rules.dispatch == "one" or self._nobody_waits:
            return []
        return self._attempt(Sight(self._pools, self._look, now, {}), now)

    # Time.

    def wind_up(self, now: Micros) -> None:
        """Somebody comes to wait: there is a tick after `now`, if time alone may let him in."""
        if self.rules.ticks:
            self._look_again(now)

    def soon(self) -> Micros | None:
        """When time may let somebody in; None: never."""
        return None if self._nobody_waits else self.tick

    def fire(self, now: Micros) -> list[Decision]:
        """Whose time is up; then a tick, if one is due."""
        done = [decision for pool in self._pools for decision in pool.expire(now)]
        if self.tick is None or self.tick > now:
            return done
        if self._nobody_waits:  # who comes at this very instant may still go in with this tick
            self.tick = self.tick if self.rules.ticks else None
            return done
        self.tick = None
        done += self._attempt(Sight(self._pools, self._look, now, {}), now)
        if not self._nobody_waits:
            self.wind_up(now)
        return done

    @property
    def _nobody_waits(self) -> bool:
        return not any(pool.waiting for pool in self._pools)

    def _look_again(self, now: Micros) -> None:
        if self.tick is None or self.tick < now:
            self.tick = now + self.rules.limits.dispatch_tick_interval_us

    # Who goes in.

    def _attempt(self, sight: Sight, now: Micros) -> list[Decision]:
        """Those who may go in at what is seen of the instances."""
        decisions: list[Decision] = []
        candidates = [self._candidate(pool, sight) for pool in self._pools if len(pool.gate)]
        if self.rules.limits.in_flight_eviction:
            saturated = [candidate for candidate in candidates if candidate.saturation >= 1.0]
            decisions += [decision for candidate in saturated for decision in candidate.pool.evict(now)]
            candidates = [candidate for candidate in candidates if candidate not in saturated]
        while (best := self._best(candidates)) is not None:
            chosen, ticket = best
            decisions.append(chosen.pool.serve(ticket, now))
            for candidate in candidates:
                candidate.unseen += chosen.pool in candidate.group
            if self.rules.dispatch == "one":
                break
        if len(self._pools) > 1 and any(candidate.guessed and len(candidate.pool.gate) for candidate in candidates):
            self._look_again(now)
        return decisions

    def _candidate(self, pool: FlowPool, sight: Sight) -> _Candidate:
        gauge = READERS[self.rules.detector](sight.load_of(pool), self.rules.limits)
        group = sight.together(pool)
        return _Candidate(pool, group, gauge, sight.on_the_way(group) if self.rules.counts_unseen else 0)

    def _best(self, candidates: Sequence[_Candidate]) -> tuple[_Candidate, Ticket] | None:
        """Of whom each has next, the one who goes first; None: nobody may go in."""
        nexts = [(candidate, ticket) for candidate in candidates if (ticket := candidate.next()) is not None]
        if not nexts:
            return None
        return nexts[0] if len(nexts) == 1 else min(nexts, key=lambda one: rank(one[1], self.rules.band_order))


class _Candidate:
    """A pool of which somebody might go in."""

    __slots__ = ("_gauge", "group", "pool", "unseen")

    def __init__(self, pool: FlowPool, group: Sequence[FlowPool], gauge: Gauge, unseen: int) -> None:
        self.pool = pool
        self.group = group
        """Those of whom one who goes in counts for it."""
        self.unseen = unseen
        """How many have gone in and are seen nowhere yet."""
        self._gauge = gauge

    @property
    def guessed(self) -> bool:
        """Whether some of `unseen` may be on their way to other instances."""
        return self.unseen > 0 and any(pool.instances != self.pool.instances for pool in self.group)

    @property
    def saturation(self) -> float:
        return self._gauge(self.unseen)

    def next(self) -> Ticket | None:
        """Who of it may go in next; None: nobody."""
        return self.pool.gate.next(self._gauge(self.unseen)) if len(self.pool.gate) else None
