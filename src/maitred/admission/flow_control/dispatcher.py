"""Sight: what is seen of the instances when somebody may go in, and how many are on the way to them unseen.

One who was let in is on his way until an instance shows him; and an instance does not say for which model it has what it has.
So models that have instances in common, or are linked by others that have, are counted together:

    on the way = in flight by the books of all these pools - in flight at all their instances

Where models share only some of their instances, one who is on his way elsewhere counts here too, until he is seen: for that
moment too few enter, and never too many. So there it is looked again (`Dispatcher`), though nobody has come or left.

Dispatcher: who goes in, over all models.

Models may run on the same instances. So who waits for one of them competes with those who wait for the others, by one order
(`dispatch_order`), each held back by how saturated the instances are that his own model runs on. Else a busy model would take
every place that falls free, and who waits for another could wait for ever.

An attempt is made whenever somebody comes; with `dispatch: all`, whenever somebody has left, too; and at ticks, which all
models have together. There are ticks while anybody waits, where the load of the instances may change by itself or only one goes
in at each attempt; else only while somebody may be held back by one who is on his way elsewhere (see `sight`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from maitred.admission.flow_control.bands import dispatch_rank
from maitred.admission.pool import LoadProbe
from maitred.admission.rules import FlowControlRules
from maitred.admission.saturation import SATURATION_DETECTORS, SaturationGauge, total_in_flight
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.flow_control.pool import FlowPool


class SaturationProbe:
    """At one instant. The instances of a model are looked at once at most, or not at all if their `loads` are known."""

    def __init__(self, pools: Iterable[FlowPool], load_probe: LoadProbe, now: Micros, loads: Mapping[str, FleetLoad]) -> None:
        self._pools = pools
        self._load_probe = load_probe
        self._now = now
        self._loads = dict(loads)

    def load_of(self, pool: FlowPool) -> FleetLoad:
        """That of the instances of its model."""
        load = self._loads.get(pool.name)
        if load is None:
            load = self._loads[pool.name] = self._load_probe(pool.name, self._now)
        return load

    def linked_pools(self, pool: FlowPool) -> Sequence[FlowPool]:
        """Those that are counted together with `pool`, which is the first of them."""
        group = [pool]
        others = [p for p in self._pools if p is not pool and (p.slots.in_use or len(p.bands))]
        if not others:
            return group
        reach = self._instances_of(pool)
        while linked := [p for p in others if not reach.isdisjoint(self._instances_of(p))]:
            group += linked
            reach = reach.union(*(self._instances_of(p) for p in linked))
            others = [p for p in others if p not in linked]
        return group

    def unseen_in_flight(self, group: Sequence[FlowPool]) -> int:
        """How many requests of `group` no instance shows."""
        first = group[0]
        shown = total_in_flight(self.load_of(first))
        if len(group) == 1:
            return max(0, first.slots.in_use - shown)
        known = self._instances_of(first)
        for pool in group[1:]:
            if not self._instances_of(pool) <= known:
                shown += sum(i.in_flight for i in self.load_of(pool).instances if i.index not in known)
                known |= self._instances_of(pool)
        return max(0, sum(pool.slots.in_use for pool in group) - shown)

    def _instances_of(self, pool: FlowPool) -> frozenset[int]:
        """As seen now or, where nobody has looked now, the last time: which they are changes seldom."""
        if pool.known_instances is None or pool.name in self._loads:
            pool.known_instances = frozenset(instance.index for instance in self.load_of(pool).instances)
        return pool.known_instances


class Dispatcher:
    """Of the pools of one core. `look` tells how loaded the instances of a model are."""

    def __init__(self, rules: FlowControlRules, load_probe: LoadProbe) -> None:
        self.rules = rules
        self.next_tick: Micros | None = None
        """The next one; if it is past, nobody waited then. None: nobody need look at the clock."""
        self._load_probe = load_probe
        self._pools: list[FlowPool] = []

    def add(self, pool: FlowPool) -> None:
        """Decisions must not hang on the order in which models came."""
        insort(self._pools, pool, key=lambda p: p.name)

    def on_arrival(self, pool: FlowPool, load: FleetLoad, now: Micros) -> list[Decision]:
        """Somebody stands at the gate of `pool`, whose instances have this `load`."""
        self.arm_tick(now)
        return self._dispatch(SaturationProbe(self._pools, self._load_probe, now, {pool.name: load}), now)

    def on_departure(self, now: Micros) -> list[Decision]:
        """Somebody has left an instance, or there may be more room for another reason."""
        if self.rules.dispatch == "one" or self._is_idle:
            return []
        return self._dispatch(SaturationProbe(self._pools, self._load_probe, now, {}), now)

    # Time.

    def arm_tick(self, now: Micros) -> None:
        """Somebody comes to wait: there is a tick after `now`, if time alone may let him in."""
        if self.rules.needs_ticks:
            self._schedule_tick(now)

    def next_admission_at(self) -> Micros | None:
        """When time may let somebody in; None: never."""
        return None if self._is_idle else self.next_tick

    def advance(self, now: Micros) -> list[Decision]:
        """Whose time is up; then a tick, if one is due."""
        done = [decision for pool in self._pools for decision in pool.expire_waiters(now)]
        if self.next_tick is None or self.next_tick > now:
            return done
        if self._is_idle:  # who comes at this very instant may still go in with this tick
            self.next_tick = self.next_tick if self.rules.needs_ticks else None
            return done
        self.next_tick = None
        done += self._dispatch(SaturationProbe(self._pools, self._load_probe, now, {}), now)
        if not self._is_idle:
            self.arm_tick(now)
        return done

    @property
    def _is_idle(self) -> bool:
        return not any(pool.waiting for pool in self._pools)

    def _schedule_tick(self, now: Micros) -> None:
        if self.next_tick is None or self.next_tick < now:
            self.next_tick = now + self.rules.config.dispatch_tick_interval_us

    # Who goes in.

    def _dispatch(self, probe: SaturationProbe, now: Micros) -> list[Decision]:
        """Those who may go in at what is seen of the instances."""
        decisions: list[Decision] = []
        candidates = [self._make_candidate(pool, probe) for pool in self._pools if len(pool.bands)]
        if self.rules.config.in_flight_eviction:
            saturated = [candidate for candidate in candidates if candidate.saturation >= 1.0]
            decisions += [decision for candidate in saturated for decision in candidate.pool.evict_one(now)]
            candidates = [candidate for candidate in candidates if candidate not in saturated]
        while (best := self._best_candidate(candidates)) is not None:
            chosen, ticket = best
            decisions.append(chosen.pool.admit_waiter(ticket, now))
            for candidate in candidates:
                candidate.unseen += chosen.pool in candidate.group
            if self.rules.dispatch == "one":
                break
        if len(self._pools) > 1 and any(candidate.may_overcount and len(candidate.pool.bands) for candidate in candidates):
            self._schedule_tick(now)
        return decisions

    def _make_candidate(self, pool: FlowPool, probe: SaturationProbe) -> _Candidate:
        gauge = SATURATION_DETECTORS[self.rules.detector](probe.load_of(pool), self.rules.config)
        group = probe.linked_pools(pool)
        return _Candidate(pool, group, gauge, probe.unseen_in_flight(group) if self.rules.counts_unseen_in_flight else 0)

    def _best_candidate(self, candidates: Sequence[_Candidate]) -> tuple[_Candidate, Ticket] | None:
        """Of whom each has next, the one who goes first; None: nobody may go in."""
        nexts = [(candidate, ticket) for candidate in candidates if (ticket := candidate.next_ticket()) is not None]
        if not nexts:
            return None
        return nexts[0] if len(nexts) == 1 else min(nexts, key=lambda one: dispatch_rank(one[1], self.rules.band_order))


class _Candidate:
    """A pool of which somebody might go in."""

    __slots__ = ("_gauge", "group", "pool", "unseen")

    def __init__(self, pool: FlowPool, group: Sequence[FlowPool], gauge: SaturationGauge, unseen: int) -> None:
        self.pool = pool
        self.group = group
        """Those of whom one who goes in counts for it."""
        self.unseen = unseen
        """How many have gone in and are seen nowhere yet."""
        self._gauge = gauge

    @property
    def may_overcount(self) -> bool:
        """Whether some of `unseen` may be on their way to other instances."""
        return self.unseen > 0 and any(pool.known_instances != self.pool.known_instances for pool in self.group)

    @property
    def saturation(self) -> float:
        return self._gauge(self.unseen)

    def next_ticket(self) -> Ticket | None:
        """Who of it may go in next; None: nobody."""
        return self.pool.bands.next_ticket(self._gauge(self.unseen)) if len(self.pool.bands) else None
