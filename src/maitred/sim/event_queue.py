"""The agenda of the virtual world: what is due when, as one heap of (time, kind, whom).

At one instant the kinds come in this order, and within a kind whom it concerns: never the order in which entries were pushed,
for that depends on how many steps were skipped.

    arrival  <  admission decides  <  routing  <  deadline of one on the way  <  admission's timer
             <  KV has come  <  enters its wait queue  <  an instance's event  <  a sample is taken  <  steps begin

So whatever enters an instance at t joins the step that begins at t, and a step that ends at t has freed its room by then. What
decides about requests (all that comes before the instances) precedes what happens in instances at that instant, as in BLIS.

Arrivals: the jobs of a workload as they come, those that follow from others' ends among them.

The workload is read one job ahead. What a reactive workload adds is merged by (arrival, id): each has an entry of its own in
the agenda.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heappush
from typing import Final

from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.units import SECOND, Micros
from maitred.workload import Job, ReactiveWorkload


class SimEventKind(IntEnum):
    """What is due, and whom the entry names."""

    ARRIVAL = 0
    """A request, by its id."""
    DECISION = 1
    """A request on its way, by the number of its station; ROUTING, TRANSFER and ENTRY likewise."""
    ROUTING = 2
    DEADLINE = 3
    """A request, by its id."""
    ADMISSION = 4
    TRANSFER = 5
    ENTRY = 6
    INSTANCE = 7
    """By its index."""
    SAMPLE = 8


ARRIVAL: Final = SimEventKind.ARRIVAL
INSTANCE: Final = SimEventKind.INSTANCE
"""The two that come for every request: members of enums are slow to look up."""


class EventQueue:
    """The heap, and the time."""

    __slots__ = ("heap", "last_instance_turn", "now")

    def __init__(self) -> None:
        self.heap: list[tuple[Micros, SimEventKind, int]] = []
        self.now: Micros = 0
        self.last_instance_turn: tuple[Micros, int] = (-1, 0)
        """When it was an instance's turn for the last time, and of those at that instant the last index."""

    def push(self, at: Micros, kind: SimEventKind, target: int = 0) -> None:
        heappush(self.heap, (at, kind, target))


_PROGRESS_EVERY: Final = 1_000
_YEAR = 365 * 86_400 * SECOND
_LATEST_ARRIVAL: Final = 10_000 * _YEAR
"""What is later is in another unit, or beyond what columns hold."""


class ArrivalFeed:
    """Who is expected."""

    def __init__(self, jobs: Iterable[Job], agenda: EventQueue, progress: Callable[[int], None] | None) -> None:
        """`progress` is told now and then how many have arrived."""
        self._jobs = iter(jobs)
        self._agenda = agenda
        self._scheduled: dict[RequestId, Job] = {}
        self._last_read_id: RequestId | None = None
        """Whose arrival makes us read the next job."""
        self._progress = progress
        self.num_arrived = 0
        """How many have arrived."""
        self.reactive = jobs if isinstance(jobs, ReactiveWorkload) else None

    def __bool__(self) -> bool:
        """Whether anybody is expected."""
        return bool(self._scheduled)

    def read_next(self, now: Micros) -> None:
        """Expect the next job of the workload. Raises ConfigError if it comes too late."""
        job = next(self._jobs, None)
        if job is None:
            self._last_read_id = None
            return
        request = job.request
        if request.arrival < now:
            before = f"after one that arrived at {now} µs" if self.num_arrived else "before the run begins at 0"
            what = f"request {request.id} arrives at {request.arrival} µs, {before}"
            raise ConfigError(what, hint="give the jobs in the order of arrival")
        self._last_read_id = request.id
        self._schedule(job)

    def pop_arrival(self, request_id: RequestId, now: Micros) -> Job:
        """The job that arrives at `now`."""
        job = self._scheduled.pop(request_id)
        if self._progress is not None and self.num_arrived % _PROGRESS_EVERY == 0:
            self._progress(self.num_arrived)
        self.num_arrived += 1
        if request_id == self._last_read_id:
            self.read_next(now)
        return job

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> None:
        """Tell a reactive workload, and expect what follows. Raises ConfigError if that lies in the past."""
        assert self.reactive is not None
        for job in self.reactive.on_request_end(request, completed, output_tokens, now):
            if job.request.arrival < now:
                what = f"request {job.request.id} follows at {job.request.arrival} µs from one that ended at {now} µs"
                raise ConfigError(what, hint="what follows arrives then or later")
            self._schedule(job)

    def _schedule(self, job: Job) -> None:
        request = job.request
        if request.id in self._scheduled:
            raise ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")
        if request.arrival > _LATEST_ARRIVAL:
            what = f"request {request.id} arrives at {request.arrival} µs, in {request.arrival // _YEAR:,} years"
            raise ConfigError(what, hint="arrivals are µs since the start of the run")
        self._scheduled[request.id] = job
        heappush(self._agenda.heap, (request.arrival, ARRIVAL, request.id))
