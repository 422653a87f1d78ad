"""Sight: what is seen of the instances when somebody may go in, and how many are on the way to them unseen.

One who was let in is on his way until an instance shows him; and an instance does not say for which model it has what it has.
So models that have instances in common, or are linked by others that have, are counted together:

    on the way = in flight by the books of all these pools - in flight at all their instances

Where models share only some of their instances, one who is on his way elsewhere counts here too, until he is seen: for that
moment too few enter, and never too many. So there it is looked again (`Dispatcher`), though nobody has come or left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from maitred.admission.flow_control.detectors import in_flight_of
from maitred.admission.pool import Look
from maitred.contracts import FleetLoad
from maitred.units import Micros

if TYPE_CHECKING:
    from maitred.admission.flow_control.pool import FlowPool


class Sight:
    """At one instant. The instances of a model are looked at once at most, or not at all if their `loads` are known."""

    def __init__(self, pools: Iterable[FlowPool], look: Look, now: Micros, loads: Mapping[str, FleetLoad]) -> None:
        self._pools = pools
        self._look = look
        self._now = now
        self._loads = dict(loads)

    def load_of(self, pool: FlowPool) -> FleetLoad:
        """That of the instances of its model."""
        load = self._loads.get(pool.name)
        if load is None:
            load = self._loads[pool.name] = self._look(pool.name, self._now)
        return load

    def together(self, pool: FlowPool) -> Sequence[FlowPool]:
        """Those that are counted together with `pool`, which is the first of them."""
        group = [pool]
        others = [p for p in self._pools if p is not pool and (p.slots.used or len(p.gate))]
        if not others:
            return group
        reach = self._instances_of(pool)
        while linked := [p for p in others if not reach.isdisjoint(self._instances_of(p))]:
            group += linked
            reach = reach.union(*(self._instances_of(p) for p in linked))
            others = [p for p in others if p not in linked]
        return group

    def on_the_way(self, group: Sequence[FlowPool]) -> int:
        """How many requests of `group` no instance shows."""
        first = group[0]
        shown = in_flight_of(self.load_of(first))
        if len(group) == 1:
            return max(0, first.slots.used - shown)
        known = self._instances_of(first)
        for pool in group[1:]:
            if not self._instances_of(pool) <= known:
                shown += sum(i.in_flight for i in self.load_of(pool).instances if i.index not in known)
                known |= self._instances_of(pool)
        return max(0, sum(pool.slots.used for pool in group) - shown)

    def _instances_of(self, pool: FlowPool) -> frozenset[int]:
        """As seen now or, where nobody has looked now, the last time: which they are changes seldom."""
        if pool.instances is None or pool.name in self._loads:
            pool.instances = frozenset(instance.index for instance in self.load_of(pool).instances)
        return pool.instances
