"""Closed loop: a trace whose sessions wait for their answers, as people and agents do.

The first request of a session comes when the trace says; each one after it when the one before has ended, and the pause has
passed that the trace says (`Row.think`), or else the time between the two arrivals there (BLIS). `think` replaces all pauses.
A request that did not complete ends its session: nobody goes on from an answer that he has not got. A row that belongs to no
session comes when the trace says.

A sub-agent (`Row.parent`) is a program of its own that starts when the request of its parent has ended that stands before it in
the trace; its parent goes on meanwhile.

How much is in memory. Where rows say nothing of pauses, a next request is never due before its recorded arrival (by induction:
its predecessor ended after its own), so it is read when its time comes. Where pauses are given it may be, so we read on until
it is found. That is no more than a session where the rows of one stand together (`TraceFormat.by_session`), and else it may be
the whole file, as compact rows. `limit` keeps that many sessions open at once and begins the next one when one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from maitred.request import Request
from maitred.units import Micros
from maitred.workload.job import Job
from maitred.workload.row import Row, TraceFormat, job_of

Send: TypeAlias = Callable[[Job], None]


class _Session:
    """A program and its sub-agents."""

    __slots__ = ("to_end",)

    def __init__(self) -> None:
        self.to_end = 0
        """How many of its requests, as far as they have been read, have not ended."""


class _Loop:
    """One program: at most one request of it is under way."""

    __slots__ = ("cancelled", "idle_since", "last_at", "own", "program", "session", "waiting")

    def __init__(self, program: str, session: _Session, first_at: Micros) -> None:
        self.program = program
        self.session = session
        self.waiting: list[Row] = []  # nearly always empty, where a deque would take 600 bytes for that
        """Its next requests, and the first ones of its sub-agents between them."""
        self.own = 0
        """How many of them are its own."""
        self.last_at = first_at
        """The recorded arrival of the request that was sent last."""
        self.idle_since: Micros | None = None
        """When that ended; None while it is under way."""
        self.cancelled = False


class ClosedLoop:
    """A reactive workload (`workload.reactive`) of the rows of a trace."""

    def __init__(
        self,
        rows: Iterable[Row],
        trace_format: TraceFormat,
        *,
        think: Micros | None = None,
        limit: int | None = None,
        rate_scale: float = 1.0,
    ) -> None:
        """`rows` in order of arrival, or, `by_session`, those of one session after those of another. `limit`, at least 1, only
        for the latter. `rate_scale`: what comes at a time of its own comes at so much less of it; pauses stay."""
        self._rows = iter(rows)
        self._by_session = trace_format.by_session
        self._think = think
        self._limit = limit
        self._reads_ahead = think is not None or trace_format.thinks or rate_scale < 1
        self._rate_scale = rate_scale
        self._next_row: Row | None = next(self._rows, None)
        self._origin = trace_format.origin(self._next_row.at) if self._next_row else 0
        self._numbers = count()
        self._loops: dict[str, _Loop] = {}
        self._latest: _Session | None = None
        """The session that was begun last."""
        self._open = 0
        """Sessions that are not over, if `limit` counts them."""
        self._due: list[tuple[Micros, int, Job]] = []
        """What the reader of this workload has still to be given."""

    def __iter__(self) -> Iterator[Job]:
        while self._next_row is not None and not self._full(self._next_row):
            begins, at = self._begins(self._next_row), self._recorded(self._next_row)
            self._take(self._expect)
            while self._due and self._due[0][0] <= at and (begins or not self._by_session):
                yield heappop(self._due)[2]
        while self._due:
            yield heappop(self._due)[2]

    def ended(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        loop = self._loops.get(request.program) if request.program else None
        if loop is None:
            return ()
        loop.session.to_end -= 1
        jobs: list[Job] = []
        if completed:
            self._read_on(loop, jobs.append if self._limit else self._expect)
            loop.idle_since = now
            self._go_on(loop, jobs.append)
        else:
            self._cancel(loop)
        if self._limit is not None and self._is_over(loop.session):
            self._open -= 1
            self._begin_next(now, jobs.append)
        return jobs

    def _begins(self, row: Row) -> bool:
        """Whether `row`, the next one, begins a session."""
        return row.program not in self._loops and row.parent not in self._loops

    def _full(self, row: Row) -> bool:
        return self._limit is not None and self._open >= self._limit and self._begins(row)

    def _expect(self, job: Job) -> None:
        heappush(self._due, (job.request.arrival, job.request.id, job))

    def _take(self, send: Send, earliest: Micros = 0) -> None:
        """The next row of the trace finds its place, and what is to be sent now is sent."""
        row = self._next_row
        assert row is not None
        loop, parent = self._loops.get(row.program), self._loops.get(row.parent)
        self._next_row = next(self._rows, None)
        if loop:
            self._follow(loop, loop, row, send)
        elif row.program and parent:
            loop = self._loops[row.program] = _Loop(row.program, parent.session, row.at)
            loop.cancelled = parent.cancelled
            self._follow(parent, loop, row, send)
        else:
            if row.program:
                self._latest = _Session()
                self._open += 1
                self._latest.to_end += 1
                self._loops[row.program] = _Loop(row.program, self._latest, row.at)
            send(self._job(row, max(self._recorded(row), earliest)))

    def _follow(self, before: _Loop, loop: _Loop, row: Row, send: Send) -> None:
        """`row` of `loop` comes when the request of `before` has ended that is under way, or those that wait before it."""
        if before.cancelled:
            return
        loop.session.to_end += 1
        before.waiting.append(row)
        before.own += loop is before
        self._go_on(before, send)

    def _go_on(self, loop: _Loop, send: Send) -> None:
        """If its request has ended, send what follows: its sub-agents up to its own next request, and that."""
        while loop.waiting and loop.idle_since is not None:
            row = loop.waiting.pop(0)
            send(self._job(row, loop.idle_since + self._pause(loop, row)))
            if row.program == loop.program:
                loop.last_at, loop.idle_since = row.at, None
                loop.own -= 1

    def _pause(self, loop: _Loop, row: Row) -> Micros:
        if self._think is not None:
            return self._think
        return max(row.at - loop.last_at, 0) if row.think is None else row.think

    def _read_on(self, loop: _Loop, send: Send) -> None:
        """Until the next request of `loop` has been read, if it may be due before it was recorded."""
        while self._reads_ahead and not loop.own and self._next_row is not None:
            if self._by_session and (loop.session is not self._latest or self._begins(self._next_row)):
                return
            self._take(send)

    def _cancel(self, loop: _Loop) -> None:
        loop.cancelled = True
        for row in loop.waiting:
            loop.session.to_end -= 1
            if row.program != loop.program:
                self._cancel(self._loops[row.program])
        loop.waiting.clear()

    def _is_over(self, session: _Session) -> bool:
        more_to_come = session is self._latest and self._next_row is not None and not self._begins(self._next_row)
        return not session.to_end and not more_to_come

    def _begin_next(self, now: Micros, send: Send) -> None:
        """The next session begins in the place of one that is over, though not before it was recorded to."""
        while self._next_row is not None and not self._full(self._next_row):
            self._take(send, now)

    def _recorded(self, row: Row) -> Micros:
        """When `row` arrives if it waits for nobody."""
        at = row.at - self._origin
        return at if self._rate_scale == 1 else round(at / self._rate_scale)

    def _job(self, row: Row, arrival: Micros) -> Job:
        return job_of(row, next(self._numbers) if row.id is None else row.id, arrival)
