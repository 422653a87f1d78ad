"""Closed loop: a trace whose sessions wait for their answers, as people and agents do.

The first request of a session comes when the trace says; each one after it when the one before has ended, and the pause has
passed that the trace says (`TraceRow.think_time`), or else the time between the two arrivals there (BLIS). `think` replaces
all pauses.
A request that did not complete ends its session: nobody goes on from an answer that he has not got. A row that belongs to no
session comes when the trace says.

A sub-agent (`TraceRow.parent_program`) is a program of its own that starts when the request of its parent has ended that
stands before it in
the trace; its parent goes on meanwhile.

How much is in memory. Where rows say nothing of pauses, a next request is never due before its recorded arrival (by induction:
its predecessor ended after its own), so it is read when its time comes. Where pauses are given it may be, so we read on until
it is found. That is no more than a session where the rows of one stand together (`TraceFormat.is_grouped_by_session`), and
else it may be
the whole file, as compact rows. `limit` keeps that many sessions open at once and begins the next one when one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.workload.job import Job
from maitred.workload.trace_format import TraceFormat, TraceRow, row_to_job

Send: TypeAlias = Callable[[Job], None]


class _ReplaySession:
    """A program and its sub-agents."""

    __slots__ = ("num_unfinished",)

    def __init__(self) -> None:
        self.num_unfinished = 0
        """How many of its requests, as far as they have been read, have not ended."""


class _ReplayProgram:
    """One program: at most one request of it is under way."""

    __slots__ = ("cancelled", "idle_since", "last_recorded_arrival", "num_own_waiting", "program", "session", "waiting")

    def __init__(self, program: str, session: _ReplaySession, first_at: Micros) -> None:
        self.program = program
        self.session = session
        self.waiting: list[TraceRow] = []  # nearly always empty, where a deque would take 600 bytes for that
        """Its next requests, and the first ones of its sub-agents between them."""
        self.num_own_waiting = 0
        """How many of them are its own."""
        self.last_recorded_arrival = first_at
        """The recorded arrival of the request that was sent last."""
        self.idle_since: Micros | None = None
        """When that ended; None while it is under way."""
        self.cancelled = False


class SessionReplay:
    """A reactive workload (`workload.reactive`) of the rows of a trace."""

    def __init__(
        self,
        rows: Iterable[TraceRow],
        trace_format: TraceFormat,
        *,
        think_time: Micros | None = None,
        max_sessions: int | None = None,
        rate_scale: float = 1.0,
    ) -> None:
        """`rows` in order of arrival, or, `is_grouped_by_session`, those of one session after those of another. `limit`, at
        least 1, only
        for the latter. `rate_scale`: what comes at a time of its own comes at so much less of it; pauses stay."""
        self._rows = iter(rows)
        self._by_session = trace_format.is_grouped_by_session
        self._think_time = think_time
        self._max_sessions = max_sessions
        self._reads_ahead = think_time is not None or trace_format.has_think_times or rate_scale < 1
        self._rate_scale = rate_scale
        self._next_row: TraceRow | None = next(self._rows, None)
        self._origin = trace_format.time_origin(self._next_row.arrival) if self._next_row else 0
        self._request_ids = count()
        self._programs: dict[str, _ReplayProgram] = {}
        self._latest_session: _ReplaySession | None = None
        """The session that was begun last."""
        self._num_open_sessions = 0
        """Sessions that are not over, if `limit` counts them."""
        self._scheduled: list[tuple[Micros, int, Job]] = []
        """What the reader of this workload has still to be given."""

    def __iter__(self) -> Iterator[Job]:
        while self._next_row is not None and not self._must_wait(self._next_row):
            begins, at = self._begins_session(self._next_row), self._recorded_arrival(self._next_row)
            self._take_row(self._schedule)
            while self._scheduled and self._scheduled[0][0] <= at and (begins or not self._by_session):
                yield heappop(self._scheduled)[2]
        while self._scheduled:
            yield heappop(self._scheduled)[2]

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        loop = self._programs.get(request.program) if request.program else None
        if loop is None:
            return ()
        loop.session.num_unfinished -= 1
        jobs: list[Job] = []
        if completed:
            self._read_next_of(loop, jobs.append if self._max_sessions else self._schedule)
            loop.idle_since = now
            self._send_next(loop, jobs.append)
        else:
            self._cancel(loop)
        if self._max_sessions is not None and self._is_over(loop.session):
            self._num_open_sessions -= 1
            self._start_sessions(now, jobs.append)
        return jobs

    def _begins_session(self, row: TraceRow) -> bool:
        """Whether `row`, the next one, begins a session."""
        return row.program not in self._programs and row.parent_program not in self._programs

    def _must_wait(self, row: TraceRow) -> bool:
        return self._max_sessions is not None and self._num_open_sessions >= self._max_sessions and self._begins_session(row)

    def _schedule(self, job: Job) -> None:
        heappush(self._scheduled, (job.request.arrival, job.request.id, job))

    def _take_row(self, send: Send, earliest: Micros = 0) -> None:
        """The next row of the trace finds its place, and what is to be sent now is sent."""
        row = self._next_row
        assert row is not None
        loop, parent = self._programs.get(row.program), self._programs.get(row.parent_program)
        self._next_row = next(self._rows, None)
        if loop:
            self._append_to(loop, loop, row, send)
        elif row.program and parent:
            loop = self._programs[row.program] = _ReplayProgram(row.program, parent.session, row.arrival)
            loop.cancelled = parent.cancelled
            self._append_to(parent, loop, row, send)
        else:
            if row.program:
                self._latest_session = _ReplaySession()
                self._num_open_sessions += 1
                self._latest_session.num_unfinished += 1
                self._programs[row.program] = _ReplayProgram(row.program, self._latest_session, row.arrival)
            send(self._job(row, max(self._recorded_arrival(row), earliest)))

    def _append_to(self, before: _ReplayProgram, loop: _ReplayProgram, row: TraceRow, send: Send) -> None:
        """`row` of `loop` comes when the request of `before` has ended that is under way, or those that wait before it."""
        if before.cancelled:
            return
        loop.session.num_unfinished += 1
        before.waiting.append(row)
        before.num_own_waiting += loop is before
        self._send_next(before, send)

    def _send_next(self, loop: _ReplayProgram, send: Send) -> None:
        """If its request has ended, send what follows: its sub-agents up to its own next request, and that."""
        while loop.waiting and loop.idle_since is not None:
            row = loop.waiting.pop(0)
            send(self._job(row, loop.idle_since + self._think_time_before(loop, row)))
            if row.program == loop.program:
                loop.last_recorded_arrival, loop.idle_since = row.arrival, None
                loop.num_own_waiting -= 1

    def _think_time_before(self, loop: _ReplayProgram, row: TraceRow) -> Micros:
        if self._think_time is not None:
            return self._think_time
        return max(row.arrival - loop.last_recorded_arrival, 0) if row.think_time is None else row.think_time

    def _read_next_of(self, loop: _ReplayProgram, send: Send) -> None:
        """Until the next request of `loop` has been read, if it may be due before it was recorded."""
        while self._reads_ahead and not loop.num_own_waiting and self._next_row is not None:
            if self._by_session and (loop.session is not self._latest_session or self._begins_session(self._next_row)):
                return
            self._take_row(send)

    def _cancel(self, loop: _ReplayProgram) -> None:
        loop.cancelled = True
        for row in loop.waiting:
            loop.session.num_unfinished -= 1
            if row.program != loop.program:
                self._cancel(self._programs[row.program])
        loop.waiting.clear()

    def _is_over(self, session: _ReplaySession) -> bool:
        more_to_come = (
            session is self._latest_session and self._next_row is not None and not self._begins_session(self._next_row)
        )
        return not session.num_unfinished and not more_to_come

    def _start_sessions(self, now: Micros, send: Send) -> None:
        """The next session begins in the place of one that is over, though not before it was recorded to."""
        while self._next_row is not None and not self._must_wait(self._next_row):
            self._take_row(send, now)

    def _recorded_arrival(self, row: TraceRow) -> Micros:
        """When `row` arrives if it waits for nobody."""
        at = row.arrival - self._origin
        return at if self._rate_scale == 1 else round(at / self._rate_scale)

    def _job(self, row: TraceRow, arrival: Micros) -> Job:
        return row_to_job(row, next(self._request_ids) if row.id is None else row.id, arrival)
