"""Journey: a request in the cluster, from its arrival until it has ended.

Stations: who is on the way for some time, and when it goes on.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.sim.event_queue import EventQueue, SimEventKind
from maitred.sim.replica import Replica
from maitred.sim.results import NEVER
from maitred.workload import Job


class RequestStage(IntEnum):
    """Where a request is."""

    BEFORE_ROUTING = 0
    """Before the router, or on the way to it."""
    ENTERING = 1
    """An instance is chosen, where it counts as in flight; it does not stand in the wait queue yet."""
    IN_INSTANCE = 2
    """The instance has it: its deadline and its end are the instance's affair."""


_FRONT: Final = RequestStage.BEFORE_ROUTING


class RequestState:
    """A request that has arrived and not ended."""

    delay_id: int = 0
    """Names the entry of the agenda by which it goes on; older ones are obsolete."""
    replica: Replica | None = None
    decode_replica: Replica | None = None
    """Where it goes on when its prompt is computed; None: where it is."""
    prefilled: SequenceState | None = None
    """What it came to where its prompt was computed."""
    retries: int = 0
    """How often admission took its slot back and let it wait for another."""

    def __init__(self, job: Job, row: int) -> None:
        self.job = job
        self.row = row
        self.stage: RequestStage = _FRONT
        self.admitted_at: Micros = NEVER
        self.queued_at: Micros = NEVER

    def with_prefill_counts(self, after: SequenceState | None) -> SequenceState | None:
        """What it came to in two instances, one after the other; `after`: in the second one."""
        before = self.prefilled
        if before is None or after is None:
            return before or after
        after.num_cached_tokens = before.num_cached_tokens
        after.num_preemptions += before.num_preemptions
        after.recomputed_tokens += before.recomputed_tokens
        if after.scheduled_at is None:
            after.scheduled_at = before.scheduled_at
        return after


class DelayLine:
    """Each stay has a number, by which the agenda names it."""

    def __init__(self, agenda: EventQueue) -> None:
        self._agenda = agenda
        self._delayed: dict[int, RequestState] = {}
        self._count = 0

    def delay_until(self, journey: RequestState, at: Micros, kind: SimEventKind) -> None:
        """It goes on at `at`."""
        self._count += 1
        journey.delay_id = self._count
        self._delayed[self._count] = journey
        self._agenda.push(at, kind, self._count)

    def pop(self, delay_id: int) -> RequestState | None:
        """Who goes on; None: it has ended, or lost its slot, meanwhile."""
        journey = self._delayed.pop(delay_id)
        return journey if journey.delay_id == delay_id else None
