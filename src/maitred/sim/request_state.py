"""Request state: a request in the cluster from its arrival to its end, and the delay line in which it spends delays.

A request passes three stages:

    BEFORE_ROUTING  ->  ENTERING (an instance is chosen)  ->  IN_INSTANCE (in its wait queue or batch)

It skips ENTERING if it enters the wait queue at once. A request that loses its slot goes back to BEFORE_ROUTING.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.sim.event_queue import EventQueue, SimEventKind
from maitred.sim.replica import Replica
from maitred.sim.results import NEVER
from maitred.workload import Job


class RequestStage(IntEnum):
    """How far a request has come."""

    BEFORE_ROUTING = 0
    """No instance is chosen yet."""
    ENTERING = 1
    """An instance is chosen and counts the request as in flight. The request is not in the wait queue yet."""
    IN_INSTANCE = 2
    """The instance has the request, and also handles its deadline and its end."""


_BEFORE_ROUTING: Final = RequestStage.BEFORE_ROUTING


class RequestState:
    """A request that has arrived and not ended."""

    stage: RequestStage = _BEFORE_ROUTING
    admitted_at: Micros = NEVER
    queued_at: Micros = NEVER
    delay_id: int = 0
    """The id of its current stay in the delay line; 0 if there is none. Older ids are obsolete."""
    replica: Replica | None = None
    """The chosen instance; None before routing."""
    decode_replica: Replica | None = None
    """The instance that decodes the request after `replica` has computed its prompt, or None if `replica` does both."""
    prefilled: SequenceState | None = None
    """The final state of its sequence in the prefill instance, or None if there was none."""
    retries: int = 0
    """How often it began anew: admission took its slot back and let it wait for another, or its instance failed."""
    attempts: int = 1
    """How many instances it has been sent to since it has its slot."""

    def __init__(self, job: Job, request: Request, row: int) -> None:
        """`request` is that of `job`."""
        self.job = job
        self.request = request
        self.row = row

    def with_prefill_counts(self, decoded: SequenceState | None) -> SequenceState | None:
        """Return the state of the whole request: that of the decode instance with the counts of the prefill instance added.

        `decoded` is None if the request did not reach its decode instance.
        """
        prefilled = self.prefilled
        if prefilled is None or decoded is None:
            return prefilled or decoded
        decoded.num_cached_tokens = prefilled.num_cached_tokens
        decoded.num_preemptions += prefilled.num_preemptions
        decoded.recomputed_tokens += prefilled.recomputed_tokens
        if decoded.scheduled_at is None:
            decoded.scheduled_at = prefilled.scheduled_at
        return decoded


class DelayLine:
    """Requests that are delayed until an instant. The event queue names each stay by its id."""

    def __init__(self, event_queue: EventQueue) -> None:
        self._event_queue = event_queue
        self._delayed: dict[int, RequestState] = {}
        self._count = 0

    def delay_until(self, state: RequestState, at: Micros, kind: SimEventKind) -> None:
        """Delay a request until `at`, when an event of `kind` continues it."""
        self._count += 1
        state.delay_id = self._count
        self._delayed[self._count] = state
        self._event_queue.push(at, kind, self._count)

    def pop(self, delay_id: int) -> RequestState | None:
        """Return the request at the end of its delay, or None if it has ended or lost its slot in the meantime."""
        # The entry of a withdrawn request stays in the event queue until now, because removing it from the middle of the heap
        # would cost more than this comparison.
        state = self._delayed.pop(delay_id)
        return state if state.delay_id == delay_id else None
