"""DirectPipeline: the path of a request where nothing but a router stands between its arrival and its instance.

Most runs are of this kind. A request is routed and waits in its instance within the event of its arrival, and the first that
is heard of it is its end. So there is neither a stage to be asked nor one to be told, and the two handlers of `Pipeline` are
one straight line each. What is rare (a deadline, a request that can never run, an id that comes twice, a preemption) goes the
way of all pipelines, and results are the same, row by row.

    arrival   ->  routed, enqueued
    FINISHED  ->  the router is told, the row is written

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from typing import Final

from maitred.core.contracts import Router
from maitred.core.units import Micros
from maitred.instance import EventKind
from maitred.routing import in_flight_order
from maitred.sim.event_queue import ArrivalFeed, EventQueue
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.pipeline import Pipeline
from maitred.sim.replica import NOT_DUE
from maitred.sim.request_state import DelayLine, RequestStage, RequestState
from maitred.sim.rows import ResultRows
from maitred.sim.stages import Stages
from maitred.workload import Job

_FINISHED: Final = EventKind.FINISHED  # members of enums are slow to look up
_IN_INSTANCE: Final = RequestStage.IN_INSTANCE


class DirectPipeline(Pipeline):
    """See the module."""

    is_direct: bool = True

    def __init__(
        self,
        event_queue: EventQueue,
        arrivals: ArrivalFeed,
        router: Router,
        fleet: SimulatedFleet,
        rows: ResultRows,
        delay_line: DelayLine,
        stages: Stages,
    ) -> None:
        super().__init__(event_queue, arrivals, router, fleet, rows, delay_line, stages)
        # The usual router, which only looks at the requests in flight, is asked without a call in between.
        self._least_loaded = in_flight_order(router, self._views)

    def on_arrival(self, job: Job, now: Micros) -> None:
        request, live, least_loaded = job.request, self.live, self._least_loaded
        request_id = request.id
        if request.deadline is not None or request_id in live or self._lengths.rejection_reason(request) is not None:
            super().on_arrival(job, now)
            return
        state = live[request_id] = RequestState(job, request, self._rows.reserve())
        choice = self._router.choose(request, self._views, now) if least_loaded is None else least_loaded.least_loaded()
        replica = self._replicas[choice.instance]
        state.stage = _IN_INSTANCE
        state.replica = replica
        state.admitted_at = state.queued_at = now
        replica.in_flight += 1
        if not replica.instance.enqueue(request, job.output_tokens, now, job.conversation_prefix):
            self._fleet.schedule_now(replica, now)
        if not replica.is_dirty:  # `SimulatedFleet.mark_dirty`
            replica.is_dirty = True
            self._fleet.dirty.append(replica)

    def on_instance_due(self, index: int, now: Micros) -> None:
        replica = self._replicas[index]
        replica.next_due = NOT_DUE
        event_queue = self._event_queue
        if now != event_queue.last_turn_at:  # `EventQueue.note_turn`
            event_queue.last_turn_at, event_queue.last_turn_index = now, index
        elif index > event_queue.last_turn_index:
            event_queue.last_turn_index = index
        if not replica.is_dirty:  # `SimulatedFleet.mark_dirty`
            replica.is_dirty = True
            self._fleet.dirty.append(replica)
        events = replica.instance.advance(now)
        if not events:
            return
        live, rows, least_loaded = self.live, self._rows, self._least_loaded
        for event in events:
            if event.kind is not _FINISHED:
                self._handle_events((event,), replica, now)
                continue
            seq = event.seq
            request_id = seq.request_id
            state = live[request_id]
            del live[request_id]
            replica.in_flight -= 1
            if least_loaded is None:
                self._router.on_request_end(seq.request, index, now)
            else:
                least_loaded.changed[index] = None  # `InFlightRouter.on_request_end`
            ended_at = rows.write_completed(state, event.at, seq, replica)
            self.last_end = ended_at if ended_at > self.last_end else self.last_end


def make_pipeline(
    event_queue: EventQueue,
    arrivals: ArrivalFeed,
    router: Router,
    fleet: SimulatedFleet,
    rows: ResultRows,
    delay_line: DelayLine,
    stages: Stages,
) -> Pipeline:
    """Return the pipeline of a run with these stages."""
    is_direct = stages.take_no_time and stages.slots is None and stages.fleet_is_fixed and arrivals.reactive is None
    if is_direct and not (fleet.has_snapshots or fleet.starts_in_turn):
        return DirectPipeline(event_queue, arrivals, router, fleet, rows, delay_line, stages)
    return Pipeline(event_queue, arrivals, router, fleet, rows, delay_line, stages)
