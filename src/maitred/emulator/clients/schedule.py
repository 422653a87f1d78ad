"""SendSchedule: which request of a workload is sent when. It has no clock and no sockets.

The driver asks `next_due()`, sleeps until then, calls `take_due(now)` and sends what it gets, and reports every end. A request
is due at the arrival that the workload planned, whether or not the requests before it have their answers: an open loop. A loop
that waited for answers would slow down with the server and hide its queue (coordinated omission). Only workloads that say so
wait: sessions, closed loops and agent programs are reactive (`workload.job`), and name the requests that follow from an end.

`max_concurrency` holds requests back while that many are in flight. They keep the arrival that was planned, so that the time
for which they were held back is part of their latency. Where all of them are planned at once, though, the plan is only a
supply for that many clients, each of which sends when its last answer has come: a closed loop (`is_closed`), whose latencies
count from sending, as in `vllm bench serve`.

Example with `max_concurrency = 1`, requests due at 0, 10 and 20 ms, and answers that take 15 ms: `take_due(0)` gives the first
one, `take_due(10)` none, the end at 15 ms frees the place, and `take_due(15)` gives the second one, 5 ms late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.workload import Job, ReactiveWorkload


class SendSchedule:
    """The requests of one workload that are still to be sent. Instants are µs since the start of the run."""

    def __init__(self, jobs: Iterable[Job], max_concurrency: int | None = None, *, is_closed: bool = False) -> None:
        """`jobs` are in the order of arrival. `max_concurrency` is at least 1, or None for no limit; `is_closed` says that it
        is the number of clients of a closed loop."""
        self.is_closed = is_closed and max_concurrency is not None
        self._jobs = iter(jobs)
        self._reactive = jobs if isinstance(jobs, ReactiveWorkload) else None
        self._max_concurrency = max_concurrency
        self._planned: list[tuple[Micros, RequestId, Job]] = []
        """A heap: the next job of the iteration, and those that follow from an end."""
        self._last_read: RequestId | None = None
        """The job that makes the schedule read the next one when it is due."""
        self._held: deque[Job] = deque()
        """Due, and held back by the limit."""
        self.num_in_flight = 0
        self._is_stopped = False
        self._read_next()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to send and nothing is in flight, so that nothing can follow."""
        return not (self._planned or self._held or self.num_in_flight)

    def next_due(self) -> Micros | None:
        """Return when the next request is due, or None if none is planned. Held requests are due at the next end."""
        return self._planned[0][0] if self._planned else None

    def take_due(self, now: Micros) -> list[Job]:
        """Return the requests to send at `now`, in order. Each counts as in flight from here on."""
        while self._planned and self._planned[0][0] <= now:
            job = heappop(self._planned)[2]
            self._held.append(job)
            if job.request.id == self._last_read:
                self._read_next()
        return self._release()

    def on_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> bool:
        """Note that a request has ended, and plan what follows from it. Return whether the driver must look again: something
        may be due, or all is over."""
        self.num_in_flight -= 1
        following = False
        if self._reactive is not None and not self._is_stopped:
            for job in self._reactive.on_request_end(request, completed, output_tokens, now):
                self._plan(job)
                following = True
        return following or bool(self._held) or self.is_over

    def stop(self) -> None:
        """Send nothing more. What is in flight still ends."""
        self._is_stopped = True
        self._planned.clear()
        self._held.clear()

    def _release(self) -> list[Job]:
        free = len(self._held) if self._max_concurrency is None else self._max_concurrency - self.num_in_flight
        taken = [self._held.popleft() for _ in range(min(free, len(self._held)))]
        self.num_in_flight += len(taken)
        return taken

    def _read_next(self) -> None:
        job = next(self._jobs, None)
        self._last_read = None if job is None else job.request.id
        if job is not None:
            self._plan(job)

    def _plan(self, job: Job) -> None:
        heappush(self._planned, (job.request.arrival, job.request.id, job))
