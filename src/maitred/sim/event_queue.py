"""Event queue: everything that is due in the simulation, as a heap of (time, kind, target), the turns of instances, and the
arrivals beside them.

At one instant events come in the order of their kind, then of their target:

    arrival  <  an instance fails or begins to serve  <  admission decides  <  routing  <  deadline in front of an instance
             <  timer of admission  <  timer and decisions of programs  <  KV transfer ends  <  entry into a wait queue
             <  event of an instance  <  change of limits  <  look for learned slots
             <  look of the autoscaler  <  sample  <  steps begin

The order never depends on the order of the pushes, because that depends on the number of skipped steps. A request that enters
an instance at t joins the step that begins at t, and a step that ends at t has freed its KV and slots by then. All decisions
about requests precede the events of instances at the same instant, as in BLIS.

    turns and next arrival                      at t = 260
    instance 1 at 260                           1. request 7 arrives, and finds the wait queue of admission full
    request 7 at 260                            2. the step of instance 1 ends, and frees a slot
                                                3. the next step of instance 1 begins

Nearly all events are those of instances, the *turns*. They have a sorted list of their own, in which each is one number:
comparing numbers is quicker than comparing tuples, and a run without admission, delays and samples has no other events. There
are about as many turns as instances, so to put one into its place takes half of the comparisons in which a heap gives one out.

Arrivals are in no heap: they are in order as they come, so the next one is compared with the heads of both. The workload is
read one job ahead. Jobs that a reactive workload adds when a request ends are merged by (arrival, id).

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heappop, heappush
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from typing import Final

from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.units import SECOND, Micros
from maitred.workload import Job, ReactiveWorkload
from maitred.workload.job import check_whole_numbers, is_program_over, no_job, read_before

_PROGRESS_EVERY: Final = 1_000
"""Requests between two calls of `progress`."""
_YEAR = 365 * 86_400 * SECOND
_LATEST_ARRIVAL: Final = 10_000 * _YEAR
"""A later arrival has been given in a wrong unit, or does not fit into the columns of the results."""


class SimEventKind(IntEnum):
    """The kinds of events, in their order at one instant; arrivals precede them all. The comment of each says what its target
    is."""

    FLEET = 0
    """An instance fails, or begins to serve. The target is its index."""
    DECISION = 1
    """The admission latency is over. The target is a `DelayLine` id, as for ROUTING, TRANSFER and ENTRY."""
    ROUTING = 2
    """The routing latency is over."""
    DEADLINE = 3
    """The deadline of a request that is in no instance yet. The target is its id."""
    ADMISSION = 4
    """The timer of the admission core. The target is 0."""
    PROGRAMS = 5
    """The timer of the programs core, and its decisions about what has ended at this instant. The target is 0."""
    TRANSFER = 6
    """The KV of a prompt has reached its decode instance."""
    ENTRY = 7
    """The queueing delay is over: the request enters the wait queue of its instance."""
    INSTANCE = 8
    """Something happens in an instance. The target is its index."""
    LIMIT = 9
    """All instances have another limit. The target is the index of the change."""
    SLOTS = 10
    """A look at all instances, for learned slots. The target is 0."""
    SCALING = 11
    """A look of the autoscaling policy. The target is 0."""
    SAMPLE = 12
    """A sample of all instances is due. The target is 0."""


NO_ARRIVAL: Final = 1 << 61
"""An instant that never comes: no request is still to arrive. Compiled code needs no object for a number below 2^62."""
INDEX_BITS: Final = 14
"""Bits of the index of an instance, of which there are 10,000 at most, in the number of a turn; its instant is above them."""
INDEX_MASK: Final = (1 << INDEX_BITS) - 1


class EventQueue:
    """The heaps of events, and the current time."""

    __slots__ = ("heap", "last_turn_at", "last_turn_index", "next_sample_at", "now", "turns")

    def __init__(self) -> None:
        self.heap: list[tuple[Micros, SimEventKind, int]] = []
        """The events of all kinds but INSTANCE."""
        self.turns: list[int] = []
        """INSTANCE events, each as `-(time << INDEX_BITS | index)`, in rising order: the next one is the last of the list."""
        self.now: Micros = 0
        self.last_turn_at: Micros = -1
        """The instant of the last INSTANCE event."""
        self.last_turn_index = 0
        """The largest index of an instance that had its turn at that instant."""
        self.next_sample_at: Micros = NO_ARRIVAL
        """When the next sample of the instances is taken."""

    def push(self, at: Micros, kind: SimEventKind, target: int = 0) -> None:
        """Add an event of any kind but INSTANCE."""
        heappush(self.heap, (at, kind, target))

    def push_turn(self, at: Micros, index: int) -> None:
        """Add an INSTANCE event."""
        insort(self.turns, -(at << INDEX_BITS | index))

    def note_turn(self, index: int, now: Micros) -> None:
        """Note that the turn of the instance `index` has come."""
        # An entry that is pushed during this instant may be that of a smaller index, which changes nothing.
        if now != self.last_turn_at:
            self.last_turn_at, self.last_turn_index = now, index
        elif index > self.last_turn_index:
            self.last_turn_index = index


class ArrivalFeed:
    """The jobs that have not arrived yet: the next one of the workload, and those that a reactive workload has added."""

    def __init__(self, jobs: Iterable[Job], progress: Callable[[int], None] | None) -> None:
        """`progress` is called from time to time with the number of arrived requests. Raises ConfigError for a generator that
        was read before."""
        if isgenerator(jobs) and getgeneratorstate(jobs) != GEN_CREATED:
            raise read_before()
        self._jobs = iter(jobs)
        self._head: Job | None = None
        """The next job of the workload, which is read ahead, or None at its end."""
        self._added: list[tuple[Micros, RequestId]] = []
        """Heap of the arrivals that a reactive workload has added."""
        self._added_jobs: dict[RequestId, Job] = {}
        self.next_at: Micros = NO_ARRIVAL
        """When the next request arrives; NO_ARRIVAL: no request is still to arrive."""
        self._progress = progress
        self.num_arrived = 0
        self._workload = jobs
        self.reactive = jobs if isinstance(jobs, ReactiveWorkload) else None
        self.num_added = 0
        """Requests that arrived, or will arrive, because others ended."""

    def __bool__(self) -> bool:
        """Return whether any request is still to arrive."""
        return self.next_at != NO_ARRIVAL

    def read_next(self, now: Micros) -> None:
        """Read the next job of the workload. Raises ConfigError if its arrival lies before `now`."""
        self._head = job = next(self._jobs, None)
        if job is None:
            self.next_at = self._added[0][0] if self._added else NO_ARRIVAL
            return
        try:
            request = job.request
        except AttributeError as error:
            raise no_job(job) from error
        arrival = request.arrival
        # All arithmetic relies on the type.
        if not (type(arrival) is type(request.prompt_tokens) is type(job.output_tokens) is int):
            check_whole_numbers(job)
        if arrival < now:
            before = f"after one that arrived at {now} µs" if self.num_arrived else "before the run begins at 0"
            what = f"request {job.request.id} arrives at {arrival} µs, {before}"
            raise ConfigError(what, hint="give the jobs in the order of arrival")
        if arrival > _LATEST_ARRIVAL:
            raise _too_late(job.request)
        if self._added:
            if job.request.id in self._added_jobs:
                raise _repeated_id(job.request)
            arrival = min(arrival, self._added[0][0])
        self.next_at = arrival

    def pop_arrival(self, now: Micros) -> Job:
        """Return the job that arrives at `now`, which is `next_at`, and find the next one."""
        if self._progress is not None and self.num_arrived % _PROGRESS_EVERY == 0:
            self._progress(self.num_arrived)
        self.num_arrived += 1
        head = self._head
        if self._added and (head is None or self._added[0] < (head.request.arrival, head.request.id)):
            job = self._added_jobs.pop(heappop(self._added)[1])
            self._find_next()
            return job
        assert head is not None
        self.read_next(now)
        return head

    def report_progress(self) -> None:
        """Report the number of arrived requests."""
        if self._progress is not None:
            self._progress(self.num_arrived)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> None:
        """Report the end of a request to the reactive workload, and schedule the jobs that follow from it.

        Raises ConfigError if one of them arrives before `now`.
        """
        assert self.reactive is not None
        for job in self.reactive.on_request_end(request, completed, output_tokens, now):
            if job.request.arrival < now:
                what = f"request {job.request.id} follows at {job.request.arrival} µs from one that ended at {now} µs"
                raise ConfigError(what, hint="what follows arrives then or later")
            self._add(job)
        self._find_next()

    def is_program_over(self, program: str) -> bool:
        """Return whether the workload knows that no more requests of a program will come."""
        return bool(program) and is_program_over(self._workload, program)

    def _add(self, job: Job) -> None:
        request = job.request
        if request.id in self._added_jobs or (self._head is not None and self._head.request.id == request.id):
            raise _repeated_id(request)
        if request.arrival > _LATEST_ARRIVAL:
            raise _too_late(request)
        self._added_jobs[request.id] = job
        self.num_added += 1
        heappush(self._added, (request.arrival, request.id))

    def _find_next(self) -> None:
        """Note when the next request arrives, after the added ones have changed."""
        at = NO_ARRIVAL if self._head is None else self._head.request.arrival
        self.next_at = min(at, self._added[0][0]) if self._added else at


def _repeated_id(request: Request) -> ConfigError:
    return ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")


def _too_late(request: Request) -> ConfigError:
    what = f"request {request.id} arrives at {request.arrival} µs, in {request.arrival // _YEAR:,} years"
    return ConfigError(what, hint="arrivals are µs since the start of the run")
