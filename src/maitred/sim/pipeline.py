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

from maitred.admission import End
from maitred.contracts import Router
from maitred.errors import ConfigError
from maitred.instance import EventKind, InstanceEvent
from maitred.request import Request, RequestId
from maitred.seq import Seq
from maitred.sim.agenda import Agenda, Kind
from maitred.sim.arrivals import Arrivals
from maitred.sim.columns import NEVER, Outcome
from maitred.sim.delays import Checks, Delays
from maitred.sim.disaggregation import Pools
from maitred.sim.entrance import Entrance
from maitred.sim.fleet import Fleet
from maitred.sim.gate import Gate
from maitred.sim.handover import Handover
from maitred.sim.journey import Journey, Place
from maitred.sim.replica import Replica
from maitred.sim.rows import Rows
from maitred.sim.stations import Stations
from maitred.units import Micros

_OUTCOMES: Final = {
    EventKind.FINISHED: Outcome.COMPLETED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
    EventKind.ABORTED: Outcome.ABORTED,
    EventKind.REFUSED: Outcome.REFUSED,
}
_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN
_LOST_KV: Final = EventKind.PREEMPTED
_FINISHED: Final = EventKind.FINISHED
_ENTERING: Final = Place.ENTERING
_INSIDE: Final = Place.INSIDE
_FRONT: Final = Place.FRONT


class Pipeline:
    """Who is on which way. Every request that arrived is here until it has ended."""

    def __init__(
        self,
        agenda: Agenda,
        arrivals: Arrivals,
        entrance: Entrance | None,
        router: Router,
        fleet: Fleet,
        rows: Rows,
        delays: Delays,
        pools: Pools | None,
    ) -> None:
        """`pools`: which instances do what; None: all do everything."""
        self._agenda = agenda
        self._arrivals = arrivals
        self._gate = None if entrance is None else Gate(entrance, agenda, self)
        self._router = router
        self._fleet = fleet
        self._touched = fleet.touched
        self._by_turns = fleet.by_turns
        self._rows = rows
        self._delays = delays
        self._checks_at_once = delays.checks is Checks.AT_ONCE
        self._stations = Stations(agenda)
        self._handover = None if pools is None else Handover(pools, self._stations, fleet)
        self._takes_time = entrance is not None or pools is not None or delays != Delays()
        self.live: dict[RequestId, Journey] = {}
        self.ended: Micros = 0
        """When the last request ended."""

    def arrive(self, request_id: RequestId, now: Micros) -> None:
        job = self._arrivals.take(request_id, now)
        if self._gate is not None:
            job = self._gate.identify(job)
        request = job.request
        if request.id in self.live:
            raise ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")
        journey = self.live[request.id] = Journey(job, self._rows.row())
        if self._checks_at_once:
            outcome = self._hopeless(request, now)
            if outcome is not None:
                self.end(journey, outcome, now)
                return
            if request.deadline is not None and self._takes_time:
                self._agenda.push(request.deadline, Kind.DEADLINE, request.id)
        if not self._takes_time:
            journey.admitted = now
            self._route(journey, now)
        elif self._delays.admission is None:
            self._ask(journey, now)
        else:
            self._stations.later(journey, now + self._delays.admission, Kind.DECISION)

    def _hopeless(self, request: Request, now: Micros) -> Outcome | None:
        """What becomes of a request that need not be admitted, since it could never run."""
        if request.deadline is not None and request.deadline <= now:
            return Outcome.TIMED_OUT
        return None if self._fleet.replicas[0].instance.refusal(request) is None else Outcome.REFUSED

    def decide(self, station: int, now: Micros) -> None:
        journey = self._stations.leave(station)
        if journey is not None:
            self._ask(journey, now)

    def route(self, station: int, now: Micros) -> None:
        journey = self._stations.leave(station)
        if journey is not None:
            self._route(journey, now)

    def enter(self, station: int, now: Micros) -> None:
        journey = self._stations.leave(station)
        if journey is not None:
            self._enter(journey, now)

    def instance(self, index: int, now: Micros) -> None:
        """The turn of an instance has come, unless its entry is obsolete."""
        replica = self._fleet.replicas[index]
        if replica.due != now:
            return
        replica.due = None
        self._agenda.turn = max(self._agenda.turn, (now, index))
        self._touched[replica] = None
        for event in replica.events(now) if replica.kept else replica.instance.advance(now):
            kind = event.kind
            if kind is _FIRST_TOKEN:
                if self._gate is not None:
                    self._gate.first_byte(event.seq.request, now)
            elif kind is not _LOST_KV:
                self._over(event, replica, now)

    def transfer(self, station: int, now: Micros) -> None:
        """KV has come."""
        assert self._handover is not None
        self._handover.arrived(station, now)

    def admission(self, _: int, now: Micros) -> None:
        """Admission's timer is up."""
        assert self._gate is not None
        self._gate.timer(now)

    def deadline(self, request_id: RequestId, now: Micros) -> None:
        """The deadline of a request has come; in an instance, that is the instance's affair."""
        journey = self.live.get(request_id)
        if journey is None or journey.place is _INSIDE:
            return
        replica = journey.replica
        self._leave(journey, now)
        self.end(journey, Outcome.TIMED_OUT, now, None, replica)
        if self._gate is not None:
            self._gate.over(request_id, End.CLIENT_GONE, now)

    def _ask(self, journey: Journey, now: Micros) -> None:
        """May it enter?"""
        if self._fleet.stale:
            self._fleet.look(now)
        if self._gate is None:
            self.admitted(journey, now)
        else:
            self._gate.ask(journey.job.request, now)

    def admitted(self, journey: Journey, now: Micros) -> None:
        """It may enter."""
        journey.admitted = now
        if self._delays.routing is None:
            self._route(journey, now)
        else:
            self._stations.later(journey, now + self._delays.routing, Kind.ROUTING)

    def _route(self, journey: Journey, now: Micros) -> None:
        request, fleet = journey.job.request, self._fleet
        if fleet.stale:
            fleet.look(now)
        if self._handover is None:
            replica = fleet.replicas[self._router.choose(request, fleet.views, now).instance]
        else:
            replica = self._handover.first(journey, now)
        journey.replica = replica
        replica.in_flight += 1
        overheads = self._delays.entry
        if overheads is None:
            self._enter(journey, now)
        else:
            journey.place = _ENTERING
            self._stations.later(journey, now + overheads.before(request.prompt_tokens), Kind.ENTRY)

    def _enter(self, journey: Journey, now: Micros) -> None:
        replica, job, tokens = journey.replica, journey.job, 1
        assert replica is not None
        journey.place = _INSIDE
        journey.queued = now
        if journey.then is None:
            tokens = job.output_tokens
        if self._by_turns:
            replica.settle()
        replica.instance.enqueue(job.request, tokens, now, job.whole)
        if self._by_turns:
            self._fleet.go_on(replica)
        else:
            self._touched[replica] = None

    def _over(self, event: InstanceEvent, replica: Replica, now: Micros) -> None:
        """An instance has done its part of a request."""
        kind, request = event.kind, event.seq.request
        journey = self.live[request.id]
        then = journey.then
        if then is not None and kind is _FINISHED and replica.instance.answer(request, journey.job.output_tokens) > 1:
            assert self._handover is not None
            self._handover.send(journey, then, event.seq, now)
            return
        if then is None:
            replica.in_flight -= 1
            self._left(request, replica, now)
        else:
            self._leave(journey, now)
        self.end(journey, _OUTCOMES[kind], event.at, event.seq, replica)
        if self._gate is not None:
            self._gate.over(request.id, End.DRAINED if kind is _FINISHED else End.FAILED, now)

    def _leave(self, journey: Journey, now: Micros) -> None:
        """It is on its way no more, and in no instance."""
        here, then = journey.replica, journey.then
        journey.replica = journey.then = None
        journey.station, journey.place = 0, _FRONT
        if here is not None:
            here.in_flight -= 1
            self._left(journey.job.request, here, now)
        if then is not None:
            then.in_flight -= 1
            self._left(journey.job.request, then, now)

    def withdraw(self, journey: Journey, now: Micros) -> None:
        """Its work ends here and now, and what came of it is lost."""
        replica = journey.replica
        if replica is not None and journey.place is _INSIDE:
            if replica.withdraw(journey.job.request.id, now):
                self._fleet.call(replica, now)
            elif self._by_turns:
                self._fleet.go_on(replica)
            self._touched[replica] = None
        self._leave(journey, now)
        journey.came = None

    def _left(self, request: Request, replica: Replica, now: Micros) -> None:
        """Its router is told."""
        if self._handover is None:
            self._router.left(request, replica.index, now)
        else:
            self._handover.left(request, replica, now)

    def end(
        self, journey: Journey, outcome: Outcome, at: Micros, seq: Seq | None = None, replica: Replica | None = None
    ) -> None:
        """It is over, and has its row; `seq`: what it came to in an instance."""
        job = journey.job
        del self.live[job.request.id]
        if journey.came is not None:
            seq = journey.whole(seq)
        over = self._rows.ended(journey, outcome, at, seq, replica)
        self.ended = max(self.ended, over)
        if self._arrivals.reactive is not None:
            tokens = 0 if seq is None else seq.emitted
            self._arrivals.ended(job.request, outcome is Outcome.COMPLETED, tokens, at)

    def unfinished(self, end: Micros) -> None:
        """The rows of those who are still here at `end`, before which nothing is due any more."""
        for replica in self._fleet.replicas:
            replica.instance.advance(end)
        for journey in self.live.values():
            at, seq = journey.replica, None
            if at is not None and journey.place is _INSIDE:
                seq = at.instance.look(journey.job.request.id)
            if journey.came is not None:
                seq = journey.whole(seq)
            self._rows.ended(journey, Outcome.UNFINISHED, NEVER, seq, at)
        self.ended = end
