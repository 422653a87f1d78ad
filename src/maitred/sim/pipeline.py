"""The pipeline: the way of a request from its arrival to an instance, and back out.

    arrival -> [admission latency] -> admission -> [routing latency] -> routing -> [queueing delay] -> wait queue

What takes no time happens at once and costs no entry in the agenda. A request counts as in flight in its instance from
routing on; what the instance's latency model says of queueing delays (tokenising, say) then passes before it waits there. Its
deadline ends it wherever it is.

Admission and the router each look at the instances at the instant at which they decide.

A request whose slot is taken back at t has lost all that its instance made of it at t, its first token or its end included:
these would have been events of the instance, and whoever took the slot was there before them.
"""

from __future__ import annotations

from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.contracts import Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, InstanceEvent
from maitred.sim.admission_driver import AdmissionDriver, ModelAdmission
from maitred.sim.config import RequestDelays, ServabilityCheck
from maitred.sim.disaggregation import KvTransfer, PrefillDecodePools
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.replica import Replica
from maitred.sim.request_state import DelayLine, RequestStage, RequestState
from maitred.sim.results import NEVER, Outcome
from maitred.sim.rows import ResultRows

_OUTCOMES: Final = {
    EventKind.FINISHED: Outcome.COMPLETED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
    EventKind.ABORTED: Outcome.ABORTED,
    EventKind.REFUSED: Outcome.REFUSED,
}
_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN
_LOST_KV: Final = EventKind.KV_PREEMPTED
_FINISHED: Final = EventKind.FINISHED
_ENTERING: Final = RequestStage.ENTERING
_INSIDE: Final = RequestStage.IN_INSTANCE
_FRONT: Final = RequestStage.BEFORE_ROUTING


class Pipeline:
    """Who is on which way. Every request that arrived is here until it has ended."""

    def __init__(
        self,
        agenda: EventQueue,
        arrivals: ArrivalFeed,
        entrance: ModelAdmission | None,
        router: Router,
        fleet: SimulatedFleet,
        rows: ResultRows,
        delays: RequestDelays,
        pools: PrefillDecodePools | None,
    ) -> None:
        """`pools`: which instances do what; None: all do everything."""
        self._event_queue = agenda
        self._arrivals = arrivals
        self._admission_driver = None if entrance is None else AdmissionDriver(entrance, agenda, self)
        self._router = router
        self._fleet = fleet
        self._dirty = fleet.dirty
        self._blis_step_order = fleet.blis_step_order
        self._rows = rows
        self._delays = delays
        self._checks_on_arrival = delays.check is ServabilityCheck.ON_ARRIVAL
        self._delay_line = DelayLine(agenda)
        self._kv_transfer = None if pools is None else KvTransfer(pools, self._delay_line, fleet)
        self._has_delays = entrance is not None or pools is not None or delays != RequestDelays()
        self.live: dict[RequestId, RequestState] = {}
        self.last_end: Micros = 0
        """When the last request ended."""

    def on_arrival(self, request_id: RequestId, now: Micros) -> None:
        job = self._arrivals.pop_arrival(request_id, now)
        if self._admission_driver is not None:
            job = self._admission_driver.with_effective_class(job)
        request = job.request
        if request.id in self.live:
            raise ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")
        journey = self.live[request.id] = RequestState(job, self._rows.reserve())
        if self._checks_on_arrival:
            outcome = self._early_outcome(request, now)
            if outcome is not None:
                self.finish(journey, outcome, now)
                return
            if request.deadline is not None and self._has_delays:
                self._event_queue.push(request.deadline, SimEventKind.DEADLINE, request.id)
        if not self._has_delays:
            journey.admitted_at = now
            self._route(journey, now)
        elif self._delays.admission is None:
            self._request_admission(journey, now)
        else:
            self._delay_line.delay_until(journey, now + self._delays.admission, SimEventKind.DECISION)

    def _early_outcome(self, request: Request, now: Micros) -> Outcome | None:
        """What becomes of a request that need not be admitted, since it could never run."""
        if request.deadline is not None and request.deadline <= now:
            return Outcome.TIMED_OUT
        return None if self._fleet.replicas[0].instance.rejection_reason(request) is None else Outcome.REFUSED

    def on_admission_due(self, station: int, now: Micros) -> None:
        journey = self._delay_line.pop(station)
        if journey is not None:
            self._request_admission(journey, now)

    def on_routing_due(self, station: int, now: Micros) -> None:
        journey = self._delay_line.pop(station)
        if journey is not None:
            self._route(journey, now)

    def on_entry_due(self, station: int, now: Micros) -> None:
        journey = self._delay_line.pop(station)
        if journey is not None:
            self._enqueue(journey, now)

    def on_instance_due(self, index: int, now: Micros) -> None:
        """The turn of an instance has come, unless its entry is obsolete."""
        replica = self._fleet.replicas[index]
        if replica.next_due != now:
            return
        replica.next_due = None
        self._event_queue.last_instance_turn = max(self._event_queue.last_instance_turn, (now, index))
        self._dirty[replica] = None
        for event in replica.drain_events(now) if replica.deferred_events else replica.instance.advance(now):
            kind = event.kind
            if kind is _FIRST_TOKEN:
                if self._admission_driver is not None:
                    self._admission_driver.first_byte(event.seq.request, now)
            elif kind is not _LOST_KV:
                self._on_instance_done(event, replica, now)

    def on_transfer_due(self, station: int, now: Micros) -> None:
        """KV has come."""
        assert self._kv_transfer is not None
        self._kv_transfer.finish(station, now)

    def on_admission_timer(self, _: int, now: Micros) -> None:
        """Admission's timer is up."""
        assert self._admission_driver is not None
        self._admission_driver.on_timer(now)

    def on_deadline(self, request_id: RequestId, now: Micros) -> None:
        """The deadline of a request has come; in an instance, that is the instance's affair."""
        journey = self.live.get(request_id)
        if journey is None or journey.stage is _INSIDE:
            return
        replica = journey.replica
        self._detach(journey, now)
        self.finish(journey, Outcome.TIMED_OUT, now, None, replica)
        if self._admission_driver is not None:
            self._admission_driver.release(request_id, ReleaseReason.CLIENT_GONE, now)

    def _request_admission(self, journey: RequestState, now: Micros) -> None:
        """May it enter?"""
        if self._fleet.has_snapshots:
            self._fleet.refresh_views(now)
        if self._admission_driver is None:
            self.on_admitted(journey, now)
        else:
            self._admission_driver.submit(journey.job.request, now)

    def on_admitted(self, journey: RequestState, now: Micros) -> None:
        """It may enter."""
        journey.admitted_at = now
        if self._delays.routing is None:
            self._route(journey, now)
        else:
            self._delay_line.delay_until(journey, now + self._delays.routing, SimEventKind.ROUTING)

    def _route(self, journey: RequestState, now: Micros) -> None:
        request, fleet = journey.job.request, self._fleet
        if fleet.has_snapshots:
            fleet.refresh_views(now)
        if self._kv_transfer is None:
            replica = fleet.replicas[self._router.choose(request, fleet.views, now).instance]
        else:
            replica = self._kv_transfer.place(journey, now)
        journey.replica = replica
        replica.in_flight += 1
        overheads = self._delays.entry
        if overheads is None:
            self._enqueue(journey, now)
        else:
            journey.stage = _ENTERING
            self._delay_line.delay_until(journey, now + overheads.queueing_delay(request.prompt_tokens), SimEventKind.ENTRY)

    def _enqueue(self, journey: RequestState, now: Micros) -> None:
        replica, job, tokens = journey.replica, journey.job, 1
        assert replica is not None
        journey.stage = _INSIDE
        journey.queued_at = now
        if journey.decode_replica is None:
            tokens = job.output_tokens
        if self._blis_step_order:
            replica.settle()
        replica.instance.enqueue(job.request, tokens, now, job.conversation_prefix)
        if self._blis_step_order:
            self._fleet.resume(replica)
        else:
            self._dirty[replica] = None

    def _on_instance_done(self, event: InstanceEvent, replica: Replica, now: Micros) -> None:
        """An instance has done its part of a request."""
        kind, request = event.kind, event.seq.request
        journey = self.live[request.id]
        then = journey.decode_replica
        if then is not None and kind is _FINISHED and replica.instance.output_length(request, journey.job.output_tokens) > 1:
            assert self._kv_transfer is not None
            self._kv_transfer.start(journey, then, event.seq, now)
            return
        if then is None:
            replica.in_flight -= 1
            self._notify_router(request, replica, now)
        else:
            self._detach(journey, now)
        self.finish(journey, _OUTCOMES[kind], event.at, event.seq, replica)
        if self._admission_driver is not None:
            self._admission_driver.release(
                request.id, ReleaseReason.DRAINED if kind is _FINISHED else ReleaseReason.FAILED, now
            )

    def _detach(self, journey: RequestState, now: Micros) -> None:
        """It is on its way no more, and in no instance."""
        here, then = journey.replica, journey.decode_replica
        journey.replica = journey.decode_replica = None
        journey.delay_id, journey.stage = 0, _FRONT
        if here is not None:
            here.in_flight -= 1
            self._notify_router(journey.job.request, here, now)
        if then is not None:
            then.in_flight -= 1
            self._notify_router(journey.job.request, then, now)

    def withdraw(self, journey: RequestState, now: Micros) -> None:
        """Its work ends here and now, and what came of it is lost."""
        replica = journey.replica
        if replica is not None and journey.stage is _INSIDE:
            if replica.withdraw(journey.job.request.id, now):
                self._fleet.schedule_now(replica, now)
            elif self._blis_step_order:
                self._fleet.resume(replica)
            self._dirty[replica] = None
        self._detach(journey, now)
        journey.prefilled = None

    def _notify_router(self, request: Request, replica: Replica, now: Micros) -> None:
        """Its router is told."""
        if self._kv_transfer is None:
            self._router.on_request_end(request, replica.index, now)
        else:
            self._kv_transfer.on_request_end(request, replica, now)

    def finish(
        self,
        journey: RequestState,
        outcome: Outcome,
        at: Micros,
        seq: SequenceState | None = None,
        replica: Replica | None = None,
    ) -> None:
        """It is over, and has its row; `seq`: what it came to in an instance."""
        job = journey.job
        del self.live[job.request.id]
        if journey.prefilled is not None:
            seq = journey.with_prefill_counts(seq)
        over = self._rows.write(journey, outcome, at, seq, replica)
        self.last_end = max(self.last_end, over)
        if self._arrivals.reactive is not None:
            tokens = 0 if seq is None else seq.num_output_tokens
            self._arrivals.on_request_end(job.request, outcome is Outcome.COMPLETED, tokens, at)

    def record_unfinished(self, end: Micros) -> None:
        """The rows of those who are still here at `end`, before which nothing is due any more."""
        for replica in self._fleet.replicas:
            replica.instance.advance(end)
        for journey in self.live.values():
            at, seq = journey.replica, None
            if at is not None and journey.stage is _INSIDE:
                seq = at.instance.sequence(journey.job.request.id)
            if journey.prefilled is not None:
                seq = journey.with_prefill_counts(seq)
            self._rows.write(journey, Outcome.UNFINISHED, NEVER, seq, at)
        self.last_end = end
