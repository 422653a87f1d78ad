"""Pipeline: the path of a request from its arrival to an instance, and to its end.

    arrival -> [admission latency] -> admission -> [routing latency] -> routing -> [queueing delay] -> wait queue

A stage without a delay follows at once, within the same event. A request counts as in flight in its instance from routing on.
The queueing delay (tokenisation, for example) comes from the latency model of the instance. A deadline ends the request at
any stage. Admission and the router each see the instances as of the instant at which they decide.

A request that loses its slot at t loses everything that its instance made of it at t, its first token or its end included.
These would have been events of the instance, and at one instant decisions of admission precede the events of instances.

    t = 0     request 0 arrives, is admitted, routed and enqueued, all in one event; then the step of instance 0 begins
    t = 150   instance 0 is due: FIRST_TOKEN of request 0 goes to admission
    t = 260   instance 0 is due: FINISHED. The router is told, the row is written, and admission releases the slot, which
              admits request 1: it is routed and enqueued within the same event, and joins the step that begins at 260

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.contracts import Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, InstanceEvent
from maitred.sim.config import ServabilityCheck
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.replica import NOT_DUE, Replica
from maitred.sim.request_state import DelayLine, RequestStage, RequestState
from maitred.sim.results import NEVER, Outcome
from maitred.sim.rows import ResultRows
from maitred.sim.stages import Stages
from maitred.sim.timeline_log import TimelineLog
from maitred.workload import Job

_OUTCOME_OF: Final = {
    EventKind.FINISHED: Outcome.COMPLETED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
    EventKind.ABORTED: Outcome.ABORTED,
    EventKind.REFUSED: Outcome.REFUSED,
    EventKind.REJECTED: Outcome.REJECTED,
}
_OUTCOMES: Final = tuple(_OUTCOME_OF.get(kind, Outcome.UNFINISHED) for kind in EventKind)
"""By event kind, since a member of an enum is slow to hash."""
_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN
_KV_PREEMPTED: Final = EventKind.KV_PREEMPTED
_FINISHED: Final = EventKind.FINISHED
_ENTERING: Final = RequestStage.ENTERING
_IN_INSTANCE: Final = RequestStage.IN_INSTANCE
_BEFORE_ROUTING: Final = RequestStage.BEFORE_ROUTING


class Pipeline:
    """All requests that have arrived and not ended, and the handlers of their events."""

    is_direct: bool = False
    """Whether nothing but arrivals enters instances, and nothing but routing and samples looks at them."""

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
        self._event_queue = event_queue
        self._arrivals = arrivals
        self._router = router
        self._fleet = fleet
        self._replicas, self._views = fleet.replicas, fleet.views
        self._lengths = fleet.replicas[0].instance.lengths
        """Those of the first instance hold for all: the model length of groups is that of the shortest."""
        self._starts_in_turn = fleet.starts_in_turn
        self._rows = rows
        self._delay_line = delay_line
        self._admission, self._programs = stages.admission, stages.programs
        self._disaggregation, self._slots, self._delays = stages.disaggregation, stages.slots, stages.delays
        self._checks_on_arrival = stages.delays.check is ServabilityCheck.ON_ARRIVAL
        self._may_wait = not stages.take_no_time
        """Whether a request may spend time before it is in an instance, so that its deadline needs an event."""
        if not stages.want_first_tokens:
            fleet.omit_first_tokens()
        self.live: dict[RequestId, RequestState] = {}
        self.last_end: Micros = 0
        """When the last request ended."""
        self.timeline_log: TimelineLog | None = None
        """What the times of single requests are written to, or None."""
        self._failures, self._scaler = stages.failures, stages.scaler
        for driver in (stages.admission, stages.programs, stages.failures, stages.scaler):
            if driver is not None:
                driver.attach(self)
        self._turn: Replica | None = None
        """The instance whose events are being handled."""
        self._withdrawn: set[RequestId] = set()
        """Requests that were withdrawn from it meanwhile, by what followed from an earlier one of these events."""

    def on_arrival(self, job: Job, now: Micros) -> None:
        if self._admission is not None:
            job = self._admission.with_effective_class(job)
        request = job.request
        if request.id in self.live:
            raise ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")
        state = self.live[request.id] = RequestState(job, request, self._rows.reserve())
        if self._checks_on_arrival:
            if request.deadline is not None and request.deadline <= now:
                self.finish(state, Outcome.TIMED_OUT, now)
                return
            # A request that could never run needs no admission.
            if self._lengths.rejection_reason(request) is not None:
                self.finish(state, Outcome.REFUSED, now)
                return
            # If no stage takes time, the request reaches its instance within this event, and the instance has the deadline.
            if request.deadline is not None and self._may_wait:
                self._event_queue.push(request.deadline, SimEventKind.DEADLINE, request.id)
        if not self._may_wait:
            state.admitted_at = now
            self._route(state, now)
        elif self._programs is not None:
            self._programs.submit(request, now)
        else:
            self.on_granted(state, now)

    def on_granted(self, state: RequestState, now: Micros) -> None:
        """Send a request whose program may hold memory, or that has none, on to admission."""
        if self._delays.admission is None:
            self._request_admission(state, now)
        else:
            self._delay_line.delay_until(state, now + self._delays.admission, SimEventKind.DECISION)

    def on_admission_due(self, delay_id: int, now: Micros) -> None:
        state = self._delay_line.pop(delay_id)
        if state is not None:
            self._request_admission(state, now)

    def on_routing_due(self, delay_id: int, now: Micros) -> None:
        state = self._delay_line.pop(delay_id)
        if state is not None:
            self._route(state, now)

    def on_entry_due(self, delay_id: int, now: Micros) -> None:
        state = self._delay_line.pop(delay_id)
        if state is not None:
            self._enqueue(state, now)

    def on_instance_due(self, index: int, now: Micros) -> None:
        """Handle the events of an instance at its turn, which is its `next_due`."""
        replica = self._replicas[index]
        replica.next_due = NOT_DUE
        self._event_queue.note_turn(index, now)
        self._fleet.mark_dirty(replica)
        # The common case calls the instance directly: a list of deferred events exists only after a withdrawal.
        events = replica.drain_events(now) if replica.deferred_events else replica.instance.advance(now)
        if events:
            self._handle_events(events, replica, now)

    def _handle_events(self, events: Sequence[InstanceEvent], replica: Replica, now: Micros) -> None:
        """Handle the events of an instance, at its turn."""
        self._turn = replica
        for event in events:
            kind, seq = event.kind, event.seq
            if self._withdrawn and seq.request_id in self._withdrawn:
                continue  # What it would get at this very instant is lost with its slot.
            if kind is _FIRST_TOKEN:
                if self._admission is not None:
                    self._admission.confirm_first_byte(seq.request, now)
                if self._slots is not None:
                    self._slots.on_first_token(seq.request, replica, now)
                if self._programs is not None:
                    self._programs.on_first_token(seq.request, replica)
            elif kind is not _KV_PREEMPTED:
                self._on_instance_done(seq, kind, event.at, replica, now)
            elif self.timeline_log is not None:
                self.timeline_log.on_kv_preempted(seq, event.at)
        self._turn = None
        if self._withdrawn:
            self._withdrawn.clear()

    def on_transfer_due(self, delay_id: int, now: Micros) -> None:
        assert self._disaggregation is not None
        self._disaggregation.finish_transfer(delay_id, now)

    def on_fleet_due(self, index: int, now: Micros) -> None:
        if self._failures is not None:
            self._failures.on_due(index, now)
        elif self._scaler is not None:
            self._scaler.on_started(index, now)

    def on_scaling_due(self, _: int, now: Micros) -> None:
        assert self._scaler is not None
        self._scaler.on_look(now)

    def on_admission_timer(self, _: int, now: Micros) -> None:
        assert self._admission is not None
        self._admission.on_timer(now)

    def on_slots_due(self, _: int, now: Micros) -> None:
        assert self._slots is not None
        self._slots.on_due(now)

    def on_programs_timer(self, _: int, now: Micros) -> None:
        assert self._programs is not None
        self._programs.on_timer(now)

    def on_deadline(self, request_id: RequestId, now: Micros) -> None:
        """End a request at its deadline, unless it is in an instance, which does that itself."""
        state = self.live.get(request_id)
        if state is None or state.stage is _IN_INSTANCE:
            return
        replica = state.replica
        self._detach(state, now)
        self.finish(state, Outcome.TIMED_OUT, now, None, replica)
        if self._admission is not None:
            self._admission.release(request_id, ReleaseReason.CLIENT_GONE, now)

    def _request_admission(self, state: RequestState, now: Micros) -> None:
        if self._fleet.has_snapshots:
            self._fleet.refresh_views(now)
        if self._admission is None:
            self.on_admitted(state, now)
        else:
            self._admission.submit(state.request, now)

    def on_admitted(self, state: RequestState, now: Micros) -> None:
        """Send an admitted request on to routing."""
        state.admitted_at = now
        if self._delays.routing is None:
            self._route(state, now)
        else:
            self._delay_line.delay_until(state, now + self._delays.routing, SimEventKind.ROUTING)

    def _route(self, state: RequestState, now: Micros) -> None:
        request, fleet = state.request, self._fleet
        if fleet.has_snapshots:
            fleet.refresh_views(now)
        if not fleet.views:
            self.fail(state, now)
            return
        if self._disaggregation is None:
            replica = fleet.replicas[self._router.choose(request, fleet.candidates, now).instance]
        else:
            replica = self._disaggregation.place(state, now)
        state.replica = replica
        replica.in_flight += 1
        if self._slots is not None:
            self._slots.on_sent(request, replica, now)
        overheads = self._delays.entry
        if overheads is None:
            self._enqueue(state, now)
        else:
            state.stage = _ENTERING
            self._delay_line.delay_until(state, now + overheads.queueing_delay(request.prompt_tokens), SimEventKind.ENTRY)

    def _enqueue(self, state: RequestState, now: Micros) -> None:
        """Put a request into the wait queue of its instance. A prefill instance makes only the first token."""
        replica, job, tokens = state.replica, state.job, 1
        assert replica is not None
        state.stage = _IN_INSTANCE
        state.queued_at = now
        if state.decode_replica is None:
            tokens = job.output_tokens
        if self._starts_in_turn:
            replica.settle()
        if not replica.instance.enqueue(state.request, tokens, now, job.conversation_prefix):
            self._fleet.schedule_now(replica, now)
        if self._starts_in_turn:
            self._fleet.resume(replica)
        else:
            self._fleet.mark_dirty(replica)

    def _on_instance_done(self, seq: SequenceState, kind: EventKind, at: Micros, replica: Replica, now: Micros) -> None:
        """Handle the end of a request in an instance: its KV moves on to its decode instance, or it ends altogether."""
        request, state = seq.request, self.live[seq.request_id]
        decode = state.decode_replica
        # The prefill instance makes the first token, which is all there is of an answer of one token: its KV stays.
        if decode is not None and kind is _FINISHED and self._lengths.output_length(request, state.job.output_tokens) > 1:
            assert self._disaggregation is not None
            self._disaggregation.start_transfer(state, decode, seq, now)
            return
        if decode is None:
            replica.in_flight -= 1
            if self._slots is not None:
                self._slots.on_left(request, replica, now, seq.num_output_tokens if kind is _FINISHED else None)
            if self._disaggregation is None:
                self._router.on_request_end(request, replica.index, now)
            else:
                self._disaggregation.on_request_end(request, replica, now)
        else:
            self._detach(state, now)
        self.finish(state, _OUTCOMES[kind], at, seq, replica)
        if self._admission is not None:
            self._admission.release(seq.request_id, ReleaseReason.DRAINED if kind is _FINISHED else ReleaseReason.FAILED, now)

    def _detach(self, state: RequestState, now: Micros) -> None:
        """Take a request out of the delay line and out of the counts of its instances, and tell their routers."""
        replica, decode = state.replica, state.decode_replica
        state.replica = state.decode_replica = None
        state.delay_id, state.stage = 0, _BEFORE_ROUTING
        if replica is not None:
            replica.in_flight -= 1
            if self._slots is not None:
                self._slots.on_left(state.request, replica, now)
            self._notify_router(state.request, replica, now)
        if decode is not None:
            decode.in_flight -= 1
            self._notify_router(state.request, decode, now)

    def withdraw(self, state: RequestState, now: Micros) -> None:
        """Stop the work on a request, and drop its output."""
        if self._failures is not None:
            self._failures.lost.pop(state, None)
        replica = state.replica
        if replica is not None and state.stage is _IN_INSTANCE:
            if replica is self._turn:
                self._withdrawn.add(state.request.id)
            if replica.withdraw(state.request.id, now):
                self._fleet.schedule_now(replica, now)
            elif self._starts_in_turn:
                self._fleet.resume(replica)
            self._fleet.mark_dirty(replica)
        self._detach(state, now)
        state.prefilled = None

    def route_again(self, state: RequestState, now: Micros) -> None:
        """Choose another instance for a request that has kept its slot."""
        state.attempts += 1
        state.retries += 1
        self._route(state, now)

    def fail(self, state: RequestState, now: Micros, seq: SequenceState | None = None, replica: Replica | None = None) -> None:
        """End a request that no instance will answer, or not to its end."""
        self.finish(state, Outcome.FAILED, now, seq, replica)
        if self._admission is not None:
            self._admission.release(state.request.id, ReleaseReason.FAILED, now)

    def _notify_router(self, request: Request, replica: Replica, now: Micros) -> None:
        """Tell the router that chose `replica` that the request has left it."""
        if self._disaggregation is None:
            self._router.on_request_end(request, replica.index, now)
        else:
            self._disaggregation.on_request_end(request, replica, now)

    def finish(
        self,
        state: RequestState,
        outcome: Outcome,
        at: Micros,
        seq: SequenceState | None = None,
        replica: Replica | None = None,
    ) -> None:
        """End a request and write its row. `seq` is the final state of its sequence, or None if it was in no instance."""
        request = state.request
        del self.live[request.id]
        if state.prefilled is not None:
            seq = state.with_prefill_counts(seq)
        ended_at = self._rows.write(state, outcome, at, seq, replica)
        self.last_end = max(self.last_end, ended_at)
        if self._arrivals.reactive is not None:
            tokens = 0 if seq is None else seq.num_output_tokens
            self._arrivals.on_request_end(request, outcome is Outcome.COMPLETED, tokens, at)
        if self._scaler is not None:
            self._scaler.on_request_end(seq, replica, self._event_queue.now)
        if self._programs is not None:
            self._programs.on_end(state, outcome, seq, self._event_queue.now)
            if self._arrivals.is_program_over(request.program):
                self._programs.release(request, self._event_queue.now)

    def record_unfinished(self, end: Micros) -> None:
        """Write the rows of all requests that are left at the horizon `end`."""
        for replica in self._fleet.replicas:
            replica.instance.advance(end)
        for state in self.live.values():
            at, seq = state.replica, None
            if at is not None and state.stage is _IN_INSTANCE:
                seq = at.instance.sequence(state.request.id)
            if state.prefilled is not None:
                seq = state.with_prefill_counts(seq)
            self._rows.write(state, Outcome.UNFINISHED, NEVER, seq, at)
        self.last_end = end
