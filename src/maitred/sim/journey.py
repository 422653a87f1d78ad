"""Journey: a request in the cluster, from its arrival until it has ended."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from maitred.seq import Seq
from maitred.sim.columns import NEVER
from maitred.sim.replica import Replica
from maitred.units import Micros
from maitred.workload import Job


class Place(IntEnum):
    """Where a request is."""

    FRONT = 0
    """Before the router, or on the way to it."""
    ENTERING = 1
    """An instance is chosen, where it counts as in flight; it does not stand in the wait queue yet."""
    INSIDE = 2
    """The instance has it: its deadline and its end are the instance's affair."""


_FRONT: Final = Place.FRONT


class Journey:
    """A request that has arrived and not ended."""

    station: int = 0
    """Names the entry of the agenda by which it goes on; older ones are obsolete."""
    replica: Replica | None = None
    then: Replica | None = None
    """Where it goes on when its prompt is computed; None: where it is."""
    came: Seq | None = None
    """What it came to where its prompt was computed."""
    retries: int = 0
    """How often admission took its slot back and let it wait for another."""

    def __init__(self, job: Job, row: int) -> None:
        self.job = job
        self.row = row
        self.place: Place = _FRONT
        self.admitted: Micros = NEVER
        self.queued: Micros = NEVER

    def whole(self, after: Seq | None) -> Seq | None:
        """What it came to in two instances, one after the other; `after`: in the second one."""
        before = self.came
        if before is None or after is None:
            return before or after
        after.cached = before.cached
        after.preemptions += before.preemptions
        after.wasted += before.wasted
        if after.scheduled_at is None:
            after.scheduled_at = before.scheduled_at
        return after
