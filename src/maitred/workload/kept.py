"""A workload that is written down while it happens, in the order of its arrivals.

What a reactive workload gives may lie ahead: the next turn of a session comes when somebody has thought. So a job is held until
the clock of the run has passed its arrival; what comes later arrives later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from maitred.request import Request
from maitred.units import Micros
from maitred.workload.job import Job
from maitred.workload.reactive import Reactive
from maitred.workload.writing import LOOKED_AT, TraceWriter


class Kept:
    """The jobs of `jobs`, told of ends if those want to know. `close` when the run is over."""

    def __init__(self, jobs: Iterable[Job], writer: TraceWriter, write: Callable[[str], object]) -> None:
        """`write` gets the lines of the file."""
        self._jobs = jobs
        self._writer = writer
        self._write = write
        self._ahead: list[tuple[Micros, int, Job]] = []
        self._first: list[Job] | None = []
        """Those with which the file is to begin, until they are enough; then None."""

    def __iter__(self) -> Iterator[Job]:
        for job in self._jobs:
            self._hold(job)
            yield job
            self._passed(job.request.arrival)

    def ended(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        self._passed(now)
        if not isinstance(self._jobs, Reactive):
            return ()
        following = list(self._jobs.ended(request, completed, output_tokens, now))
        for job in following:
            self._hold(job)
        return following

    def close(self) -> None:
        """Write what is left, those that did not arrive any more included."""
        while self._ahead:
            self._put(heappop(self._ahead)[2])
        self._begin()

    def _hold(self, job: Job) -> None:
        heappush(self._ahead, (job.request.arrival, job.request.id, job))

    def _passed(self, now: Micros) -> None:
        while self._ahead and self._ahead[0][0] < now:
            self._put(heappop(self._ahead)[2])

    def _put(self, job: Job) -> None:
        if self._first is None:
            self._write(self._writer.row(job))
            return
        self._first.append(job)
        if len(self._first) == LOOKED_AT:
            self._begin()

    def _begin(self) -> None:
        if self._first is not None:
            self._write(self._writer.begin(self._first))
            for job in self._first:
                self._write(self._writer.row(job))
            self._first = None
