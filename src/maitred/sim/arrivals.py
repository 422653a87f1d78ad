"""Arrivals: the jobs of a workload as they come, those that follow from others' ends among them.

The workload is read one job ahead. What a reactive workload adds is merged by (arrival, id): each has an entry of its own in
the agenda.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappush
from typing import Final

from maitred.errors import ConfigError
from maitred.request import Request, RequestId
from maitred.sim.agenda import ARRIVAL, Agenda
from maitred.units import SECOND, Micros
from maitred.workload import Job, Reactive

_PROGRESS_EVERY: Final = 1_000
_YEAR = 365 * 86_400 * SECOND
_LATEST: Final = 10_000 * _YEAR
"""What is later is in another unit, or beyond what columns hold."""


class Arrivals:
    """Who is expected."""

    def __init__(self, jobs: Iterable[Job], agenda: Agenda, progress: Callable[[int], None] | None) -> None:
        """`progress` is told now and then how many have arrived."""
        self._jobs = iter(jobs)
        self._agenda = agenda
        self._expected: dict[RequestId, Job] = {}
        self._read: RequestId | None = None
        """Whose arrival makes us read the next job."""
        self._progress = progress
        self.count = 0
        """How many have arrived."""
        self.reactive = jobs if isinstance(jobs, Reactive) else None

    def __bool__(self) -> bool:
        """Whether anybody is expected."""
        return bool(self._expected)

    def read(self, now: Micros) -> None:
        """Expect the next job of the workload. Raises ConfigError if it comes too late."""
        job = next(self._jobs, None)
        if job is None:
            self._read = None
            return
        request = job.request
        if request.arrival < now:
            before = f"after one that arrived at {now} µs" if self.count else "before the run begins at 0"
            what = f"request {request.id} arrives at {request.arrival} µs, {before}"
            raise ConfigError(what, hint="give the jobs in the order of arrival")
        self._read = request.id
        self._expect(job)

    def take(self, request_id: RequestId, now: Micros) -> Job:
        """The job that arrives at `now`."""
        job = self._expected.pop(request_id)
        if self._progress is not None and self.count % _PROGRESS_EVERY == 0:
            self._progress(self.count)
        self.count += 1
        if request_id == self._read:
            self.read(now)
        return job

    def ended(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> None:
        """Tell a reactive workload, and expect what follows. Raises ConfigError if that lies in the past."""
        assert self.reactive is not None
        for job in self.reactive.ended(request, completed, output_tokens, now):
            if job.request.arrival < now:
                what = f"request {job.request.id} follows at {job.request.arrival} µs from one that ended at {now} µs"
                raise ConfigError(what, hint="what follows arrives then or later")
            self._expect(job)

    def _expect(self, job: Job) -> None:
        request = job.request
        if request.id in self._expected:
            raise ConfigError(f"two requests of the workload have the id {request.id}", hint="ids must be unique")
        if request.arrival > _LATEST:
            what = f"request {request.id} arrives at {request.arrival} µs, in {request.arrival // _YEAR:,} years"
            raise ConfigError(what, hint="arrivals are µs since the start of the run")
        self._expected[request.id] = job
        heappush(self._agenda.heap, (request.arrival, ARRIVAL, request.id))
