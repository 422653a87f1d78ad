"""The event loop of the virtual world.

One heap of (time, kind, whom). At one instant the kinds come in this order, and within a kind whom it concerns: never the
order in which entries were pushed, for that depends on how many steps were skipped.

    arrival  <  deadline of one that waits for admission  <  admission's timer  <  an instance's event  <  steps begin

so whatever enters an instance at t joins the step that begins at t, and a step that ends at t has freed its room by then.
Instances are advanced only when their own next event is due; entries that an arrival has made obsolete are dropped when
they come up.

So a request whose slot is taken back at t has lost all that its instance made of it at t, its first token or its end
included: these would have been events of the instance, and whoever took the slot was there before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from random import Random

import msgspec

from maitred.admission import Action, AdmissionConfig, End
from maitred.decisions import Decision, DecisionLog
from maitred.errors import ConfigError
from maitred.instance import EventKind, Instance, InstanceConfig, InstanceEvent
from maitred.request import RequestId
from maitred.routing import RoutingConfig
from maitred.sim.columns import NEVER, Columns, Outcome, Results
from maitred.sim.config import ClusterConfig
from maitred.sim.entrance import entrance
from maitred.sim.replica import Replica
from maitred.units import Micros
from maitred.workload import Job

_PROGRESS_EVERY = 1_000
_NO_HORIZON: Micros = 1 << 62

_OUTCOMES = {
    EventKind.FINISHED: Outcome.COMPLETED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
    EventKind.ABORTED: Outcome.ABORTED,
    EventKind.REFUSED: Outcome.REFUSED,
}


class _Kind(IntEnum):
    ARRIVAL = 0
    DEADLINE = 1
    ADMISSION = 2
    INSTANCE = 3


_ARRIVAL, _DEADLINE, _ADMISSION, _INSTANCE = _Kind
_FIRST_TOKEN, _LOST_KV, _FINISHED = EventKind.FIRST_TOKEN, EventKind.PREEMPTED, EventKind.FINISHED
_ADMIT, _REJECT, _PREEMPT = Action.ADMIT, Action.REJECT, Action.PREEMPT


def simulate(
    jobs: Iterable[Job],
    cluster: ClusterConfig | None = None,
    instance: InstanceConfig | None = None,
    routing: RoutingConfig | None = None,
    admission: AdmissionConfig | None = None,
    *,
    seed: int = 42,
    horizon: Micros | None = None,
    progress: Callable[[int], None] | None = None,
    log: DecisionLog | None = None,
) -> Results:
    """Run `jobs`, given in the order of arrival, through a cluster, until all have ended or `horizon` (µs) has passed.

    `admission` stands before the router, in the mode that it says; None: with the usual classes if `cluster.capacity` is
    given, else nothing does. `progress` is told now and then how many have arrived; `log` receives admission's inputs and
    decisions. Jobs are read one at a time. Raises ConfigError for unknown policies, for limits and reservations that cannot
    be, and for jobs out of order.
    """
    world = _World(
        iter(jobs),
        cluster or ClusterConfig(),
        instance or InstanceConfig(),
        routing or RoutingConfig(),
        admission,
        seed,
        progress,
        log,
    )
    return world.run(horizon)


class _Live(msgspec.Struct, gc=False):
    """A request that has arrived and not ended."""

    job: Job
    row: int
    replica: Replica | None = None


class _World:
    def __init__(
        self,
        jobs: Iterator[Job],
        cluster: ClusterConfig,
        instance: InstanceConfig,
        routing: RoutingConfig,
        admission: AdmissionConfig | None,
        seed: int,
        progress: Callable[[int], None] | None,
        log: DecisionLog | None,
    ) -> None:
        self._jobs = jobs
        self._job: Job | None = None
        self._progress = progress
        self._entrance = entrance(cluster, instance, admission, log)
        self._core = None if self._entrance is None else self._entrance.core
        self._core_due: Micros | None = None
        self._router = routing.router(Random(f"{seed}/routing"))
        self._fleet = [
            Replica(index, Instance(instance, Random(f"{seed}/instance/{index}")), lambda: self._now)
            for index in range(cluster.num_instances)
        ]
        self._now: Micros = 0
        self._touched: list[Replica] = []
        self._heap: list[tuple[Micros, _Kind, int]] = []
        self._live: dict[RequestId, _Live] = {}
        self._columns = Columns()
        self._ended: Micros = 0
        """When the last request ended."""

    def run(self, horizon: Micros | None) -> Results:
        heap, fleet = self._heap, self._fleet
        last = _NO_HORIZON if horizon is None else horizon
        self._read_job(0)
        while heap and heap[0][0] <= last:
            now, kind, whom = heappop(heap)
            self._now = now
            if kind is _INSTANCE:
                replica = fleet[whom]
                if replica.due == now:
                    replica.due = None
                    self._touch(replica)
                    for event in replica.events(now):
                        self._apply_event(event, replica)
            elif kind is _ARRIVAL:
                self._arrive(now)
            elif kind is _DEADLINE:
                self._give_up(whom, now)
            else:
                self._core_timer(now)
            if self._touched and not (heap and heap[0][0] == now):
                self._begin_steps()
        if self._job is not None or self._live:
            self._unfinished(last)
            self._ended = last
        if self._progress is not None:
            self._progress(len(self._columns))
        return self._columns.results(self._ended)

    def _unfinished(self, end: Micros) -> None:
        """The rows of those who are still here at `end`, before which nothing is due any more."""
        for replica in self._fleet:
            replica.instance.advance(end)
        for live in self._live.values():
            self._columns.ended(live.row, live.job.request, Outcome.UNFINISHED, NEVER)
            if live.replica is not None:
                seq = live.replica.instance.look(live.job.request.id)
                self._columns.ran(live.row, seq, live.replica.index)

    def _read_job(self, now: Micros) -> None:
        job = self._job = next(self._jobs, None)
        if job is None:
            return
        if job.request.arrival < now:
            before = f"after one that arrived at {now} µs" if self._columns else "before the run begins at 0"
            what = f"request {job.request.id} arrives at {job.request.arrival} µs, {before}"
            raise ConfigError(what, hint="give the jobs in the order of arrival")
        heappush(self._heap, (job.request.arrival, _ARRIVAL, 0))

    def _arrive(self, now: Micros) -> None:
        job = self._job
        assert job is not None
        if self._entrance is not None:
            job = self._entrance.identify(job)
        request = job.request
        if request.id in self._live:
            raise ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")
        row = self._columns.row()
        live = self._live[request.id] = _Live(job, row)
        if self._progress is not None and row % _PROGRESS_EVERY == 0:
            self._progress(row)
        self._read_job(now)
        if request.deadline is not None and request.deadline <= now:
            self._end(live, Outcome.TIMED_OUT, now)
        elif self._fleet[0].instance.refusal(request) is not None:
            self._end(live, Outcome.REFUSED, now)
        elif self._entrance is None:
            self._route(live, now)
        else:
            if request.deadline is not None:
                heappush(self._heap, (request.deadline, _DEADLINE, request.id))
            self._obey(self._entrance.submit(request, now), now)

    def _end(self, live: _Live, outcome: Outcome, now: Micros) -> None:
        """It is over, and has its row."""
        del self._live[live.job.request.id]
        self._columns.ended(live.row, live.job.request, outcome, now)
        self._ended = now

    def _route(self, live: _Live, now: Micros) -> None:
        request = live.job.request
        replica = live.replica = self._fleet[self._router.choose(request, self._fleet, now).instance]
        replica.in_flight += 1
        replica.instance.enqueue(request, live.job.output_tokens, now)
        self._touch(replica)

    def _touch(self, replica: Replica) -> None:
        if not replica.touched:
            replica.touched = True
            self._touched.append(replica)

    def _begin_steps(self) -> None:
        """All that happens at this instant has been said: the instances concerned go on."""
        for replica in self._touched:
            replica.touched = False
            due = replica.instance.next_event()
            if due != replica.due:
                replica.due = due
                if due is not None:
                    heappush(self._heap, (due, _INSTANCE, replica.index))
        self._touched.clear()

    def _apply_event(self, event: InstanceEvent, replica: Replica) -> None:
        kind, request = event.kind, event.seq.request
        if kind is _LOST_KV:
            return
        core = self._core
        if kind is _FIRST_TOKEN:
            if core is not None and request.stream:
                core.first_byte(request.id, event.at)
            return
        live = self._live[request.id]
        replica.in_flight -= 1
        self._end(live, _OUTCOMES[kind], event.at)
        self._columns.ran(live.row, event.seq, replica.index)
        self._router.left(request, replica.index, event.at)
        if core is not None:
            self._obey(core.release(request.id, End.DRAINED if kind is _FINISHED else End.FAILED, event.at), event.at)

    def _obey(self, decisions: Sequence[Decision], now: Micros) -> None:
        """Each in its turn. What obeying brings about is decided anew, and obeyed after the rest."""
        while decisions:
            after: list[Decision] = []
            for decision in decisions:
                live = self._live.get(decision.subject)
                if live is None:
                    continue  # it gave up at this very instant
                action = decision.action
                if action is _ADMIT:
                    self._route(live, now)
                elif action is _REJECT:
                    self._end(live, Outcome.REJECTED, now)
                elif action is _PREEMPT:
                    after += self._preempt(live, now)
            decisions = after
        assert self._core is not None
        due = self._core.next_deadline()
        if due is not None and (self._core_due is None or due < self._core_due):
            self._core_due = due
            heappush(self._heap, (due, _ADMISSION, 0))

    def _preempt(self, live: _Live, now: Micros) -> Sequence[Decision]:
        """Its slot is wanted: its work ends here and now. What is decided next, of itself too if it may try again."""
        request, replica = live.job.request, live.replica
        assert replica is not None
        assert self._core is not None
        if replica.withdraw(request.id, now) and replica.due != now:
            replica.due = now
            heappush(self._heap, (now, _INSTANCE, replica.index))
        live.replica = None
        self._touch(replica)
        self._router.left(request, replica.index, now)
        decisions = self._core.release(request.id, End.PREEMPTED, now)
        if any(decision.subject == request.id for decision in decisions):
            self._columns.retries[live.row] += 1
        else:
            self._end(live, Outcome.PREEMPTED, now)
            self._columns.instance[live.row] = replica.index
        return decisions

    def _core_timer(self, now: Micros) -> None:
        assert self._core is not None
        self._core_due = None
        self._obey(self._core.advance(now), now)

    def _give_up(self, request_id: RequestId, now: Micros) -> None:
        """The deadline of a request has come; in an instance, that is the instance's affair."""
        live = self._live.get(request_id)
        if live is None or live.replica is not None:
            return
        assert self._core is not None
        self._end(live, Outcome.TIMED_OUT, now)
        self._obey(self._core.release(request_id, End.CLIENT_GONE, now), now)
