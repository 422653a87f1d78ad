"""Dispatcher: which waiting requests enter, over all models.

Models may run on the same instances. So requests for one model compete with those for the others in one order
(`dispatch_order`), each held back by how saturated the instances of its own model are. Without this, a busy model would
take every place that becomes free, and requests for another model could wait for ever.

The dispatcher tries to let requests in whenever one arrives; with `dispatch: all`, whenever one has left, too; and at
ticks, which all models share. There are ticks while requests wait, if the load of the instances may change by itself or
only one enters at each attempt.

An admitted request is on its way until an instance shows it, and an instance does not tell for which model it has its
requests. So models that have instances in common, or are linked by other models that have, are counted together:

    unseen = in flight by the counters of all these pools - in flight at all their instances

Example: models a and b run on instances 0 and 1, which show 7 requests in flight. The pools count 5 of a and 4 of b, so
2 are on their way, and both models are held back by them.

Where models share only some of their instances, a request on its way to another instance counts here too, until it is
seen: for that moment too few enter, and never too many.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from maitred.admission.flow.bands import PriorityBands, dispatch_rank
from maitred.admission.flow.saturation import SATURATION_DETECTORS, SaturationGauge, total_in_flight
from maitred.admission.pool.slot_pool import LoadProbe
from maitred.admission.pool.slots import Slots
from maitred.admission.terms.rules import FlowControlRules
from maitred.admission.terms.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.units import Micros


class DispatchedPool(Protocol):
    """A pool as the dispatcher sees it."""

    name: str
    slots: Slots
    bands: PriorityBands
    waiting: int
    known_instances: frozenset[int] | None
    """The instances that its requests may be sent to, as last seen, or None if not seen yet."""

    def expire_waiters(self, now: Micros) -> Iterator[Decision]:
        """Reject requests that have waited too long."""
        ...

    def preempt_one(self, now: Micros) -> Iterator[Decision]:
        """Preempt one sheddable request, if a request waits that is not sheddable."""
        ...

    def admit_waiter(self, ticket: Ticket, now: Micros) -> Decision:
        """Admit a request."""
        ...


class SaturationProbe:
    """The load of the instances at one instant. It is read at most once for each model, and not at all where `loads` has it."""

    def __init__(
        self, pools: Iterable[DispatchedPool], load_probe: LoadProbe, now: Micros, loads: Mapping[str, FleetLoad]
    ) -> None:
        self._pools = pools
        self._load_probe = load_probe
        self._now = now
        self._loads = dict(loads)

    def load_of(self, pool: DispatchedPool) -> FleetLoad:
        """Return the load of the instances of a pool's model."""
        load = self._loads.get(pool.name)
        if load is None:
            load = self._loads[pool.name] = self._load_probe(pool.name, self._now)
        return load

    def linked_pools(self, pool: DispatchedPool) -> Sequence[DispatchedPool]:
        """Return the pools that are counted together with `pool`, which is the first of them."""
        group = [pool]
        others = [p for p in self._pools if p is not pool and (p.slots.in_use or len(p.bands))]
        if not others:
            return group
        # Two models without a common instance may be linked through a third one. So the search goes on until it finds no
        # further pool.
        reach = self._instances_of(pool)
        while linked := [p for p in others if not reach.isdisjoint(self._instances_of(p))]:
            group += linked
            reach = reach.union(*(self._instances_of(p) for p in linked))
            others = [p for p in others if p not in linked]
        return group

    def unseen_in_flight(self, group: Sequence[DispatchedPool]) -> int:
        """Return how many requests of the pools in `group` no instance shows."""
        first = group[0]
        shown = total_in_flight(self.load_of(first))
        if len(group) == 1:
            return max(0, first.slots.in_use - shown)
        known = self._instances_of(first)
        for pool in group[1:]:
            # An instance that several models share shows the requests of all of them, so it is added up once.
            if not self._instances_of(pool) <= known:
                shown += sum(i.in_flight for i in self.load_of(pool).instances if i.index not in known)
                known |= self._instances_of(pool)
        return max(0, sum(pool.slots.in_use for pool in group) - shown)

    def _instances_of(self, pool: DispatchedPool) -> frozenset[int]:
        """Return the instances of a pool's model; as last seen if the load has not been read now, since they seldom change."""
        if pool.known_instances is None or pool.name in self._loads:
            pool.known_instances = frozenset(instance.index for instance in self.load_of(pool).instances)
        return pool.known_instances


class Dispatcher:
    """Lets requests into the pools of one core."""

    def __init__(self, rules: FlowControlRules, load_probe: LoadProbe) -> None:
        self.rules = rules
        self.next_tick: Micros | None = None
        """The time of the next tick, or None if none is needed. If it is past, no request waited then."""
        self._load_probe = load_probe
        self._pools: list[DispatchedPool] = []

    def add(self, pool: DispatchedPool) -> None:
        """Add a pool. They are kept by name, so that decisions do not depend on the order in which models became known."""
        insort(self._pools, pool, key=lambda p: p.name)

    def on_arrival(self, pool: DispatchedPool, load: FleetLoad, now: Micros) -> list[Decision]:
        """Let requests in after one has begun to wait in `pool`. `load` is that of its instances."""
        self.arm_tick(now)
        return self._dispatch(SaturationProbe(self._pools, self._load_probe, now, {pool.name: load}), now)

    def on_departure(self, now: Micros) -> list[Decision]:
        """Let requests in after one has left an instance, or after another change that may have made room."""
        if self.rules.dispatch == "one" or self._is_idle:
            return []
        return self._dispatch(SaturationProbe(self._pools, self._load_probe, now, {}), now)

    def arm_tick(self, now: Micros) -> None:
        """Provide for a tick after `now`, if time alone may let waiting requests in."""
        if self.rules.needs_ticks:
            self._schedule_tick(now)
        elif self.next_tick is not None and self.next_tick < now:
            self.next_tick = None  # No request waited then. One at this very instant may still enter with it.

    def next_admission_at(self) -> Micros | None:
        """Return when time may let a request in, or None if never."""
        return None if self._is_idle else self.next_tick

    def advance(self, now: Micros) -> list[Decision]:
        """Reject requests that have waited too long; then run a tick, if one is due."""
        done = [decision for pool in self._pools for decision in pool.expire_waiters(now)]
        if self.next_tick is None or self.next_tick > now:
            return done
        if self._is_idle:  # The tick is kept, because a request that arrives at this very instant may still enter with it.
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

    def _dispatch(self, probe: SaturationProbe, now: Micros) -> list[Decision]:
        """Admit the requests that may enter at this load of the instances."""
        decisions: list[Decision] = []
        candidates = [self._make_candidate(pool, probe) for pool in self._pools if len(pool.bands)]
        if self.rules.config.in_flight_eviction:
            # At a saturation of 1 no band may enter, so these pools stop work in flight instead, and are not candidates.
            saturated = [candidate for candidate in candidates if candidate.saturation >= 1.0]
            decisions += [decision for candidate in saturated for decision in candidate.pool.preempt_one(now)]
            candidates = [candidate for candidate in candidates if candidate not in saturated]
        while (best := self._best_candidate(candidates)) is not None:
            chosen, ticket = best
            decisions.append(chosen.pool.admit_waiter(ticket, now))
            # The load is not read again within one attempt. What has just entered is added to the unseen requests instead.
            for candidate in candidates:
                candidate.unseen += ticket.slot_units if chosen.pool in candidate.group else 0
            if self.rules.dispatch == "one":
                break
        # What is on its way to instances of another model stops counting when it is seen there, without a request that comes or
        # leaves here: so the load is read again at the next tick.
        if len(self._pools) > 1 and any(candidate.may_overcount and len(candidate.pool.bands) for candidate in candidates):
            self._schedule_tick(now)
        return decisions

    def _make_candidate(self, pool: DispatchedPool, probe: SaturationProbe) -> _Candidate:
        gauge = SATURATION_DETECTORS[self.rules.detector](probe.load_of(pool), self.rules.config)
        group = probe.linked_pools(pool)
        return _Candidate(pool, group, gauge, probe.unseen_in_flight(group) if self.rules.counts_unseen_in_flight else 0)

    def _best_candidate(self, candidates: Sequence[_Candidate]) -> tuple[_Candidate, Ticket] | None:
        """Return the request that enters first, with its candidate; or None if none may enter."""
        nexts = [(candidate, ticket) for candidate in candidates if (ticket := candidate.next_ticket()) is not None]
        if not nexts:
            return None
        return nexts[0] if len(nexts) == 1 else min(nexts, key=lambda one: dispatch_rank(one[1], self.rules.band_order))


class _Candidate:
    """A pool of which a request might enter now."""

    __slots__ = ("_gauge", "group", "pool", "unseen")

    def __init__(self, pool: DispatchedPool, group: Sequence[DispatchedPool], gauge: SaturationGauge, unseen: int) -> None:
        self.pool = pool
        self.group = group
        """The pools that are counted together with it."""
        self.unseen = unseen
        """Admitted requests of the group that no instance shows yet."""
        self._gauge = gauge

    @property
    def may_overcount(self) -> bool:
        """Whether some of `unseen` may be on their way to instances of another model."""
        return self.unseen > 0 and any(pool.known_instances != self.pool.known_instances for pool in self.group)

    @property
    def saturation(self) -> float:
        """The saturation of the instances, with the unseen requests."""
        return self._gauge(self.unseen)

    def next_ticket(self) -> Ticket | None:
        """Return the request of the pool that may enter next, or None if none may."""
        return self.pool.bands.next_ticket(self._gauge(self.unseen)) if len(self.pool.bands) else None
