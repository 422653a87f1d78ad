"""Closed-loop replay: a trace with sessions that wait for their answers, as people and agents do.

The rules:

    first request of a session   arrives at its recorded time
    later requests               arrive when the previous one of the session has ended and a think time has passed: the recorded
                                 one (`TraceRow.think_time`), or else the time between the two recorded arrivals (BLIS).
                                 `think_time` replaces all think times
    request that fails           ends its session
    request without a session    arrives at its recorded time
    sub-agent                    is a program of its own (`TraceRow.parent_program`). It starts when the recorded request before
                                 it of its parent has ended; the parent continues beside it

Example: a session has recorded arrivals at 0 s and 5 s and no think times. If the first request ends at 2 s, the second
arrives at 2 s + 5 s = 7 s.

Memory. If rows have no think times, a request is never due before its recorded arrival (by induction: its predecessor ended
after its own recorded arrival), so rows are read when their time comes. With think times a request may be due earlier, so rows
are read until the next one of its program is found. That is at most a session if the rows of a session stand together
(`TraceFormat.is_grouped_by_session`); otherwise it may be the whole file, as compact rows. `max_sessions` keeps that many
sessions open and starts the next one when one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.workload.job import Job, ReadOnce
from maitred.workload.trace_format import TraceFormat, TraceRow, row_to_job

Send: TypeAlias = Callable[[Job], None]


class _ReplaySession:
    """A program and its sub-agents."""

    __slots__ = ("num_unfinished",)

    def __init__(self) -> None:
        self.num_unfinished = 0
        """Requests that have been read and have not ended."""


class _ReplayProgram:
    """One program. At most one of its requests is under way."""

    __slots__ = ("cancelled", "idle_since", "last_recorded_arrival", "num_own_waiting", "program", "session", "waiting")

    def __init__(self, program: str, session: _ReplaySession, first_arrival: Micros) -> None:
        self.program = program
        self.session = session
        # A list, because it is nearly always empty and an empty deque takes 600 bytes.
        self.waiting: list[TraceRow] = []
        """The next requests of the program, and between them the first requests of its sub-agents."""
        self.num_own_waiting = 0
        """How many of `waiting` are its own requests."""
        self.last_recorded_arrival = first_arrival
        """The recorded arrival of the request that was sent last."""
        self.idle_since: Micros | None = None
        """When that request ended, or None while it is under way."""
        self.cancelled = False


class SessionReplay(ReadOnce):
    """The jobs of a trace as a closed loop: a `ReactiveWorkload`."""

    def __init__(
        self,
        rows: Iterable[TraceRow],
        trace_format: TraceFormat,
        *,
        think_time: Micros | None = None,
        max_sessions: int | None = None,
        rate_scale: float = 1.0,
    ) -> None:
        """`rows` are in the order of arrival or, if grouped by session, session after session. `max_sessions` is at least 1 and
        for grouped rows only. `rate_scale` divides recorded arrivals; think times stay."""
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
        """The session that was started last."""
        self._num_open_sessions = 0
        """Sessions that are not over, if `max_sessions` limits them."""
        self._scheduled: list[tuple[Micros, int, Job]] = []
        """A heap of jobs that iteration has still to yield, by arrival and id."""

    def __iter__(self) -> Iterator[Job]:
        self.begin_reading()
        while self._next_row is not None and not self._must_wait(self._next_row):
            begins, recorded = self._begins_session(self._next_row), self._recorded_arrival(self._next_row)
            self._take_row(self._schedule)
            # Grouped rows are in the order of time from session to session only, so a row within one releases nothing.
            while self._scheduled and self._scheduled[0][0] <= recorded and (begins or not self._by_session):
                yield heappop(self._scheduled)[2]
        while self._scheduled:
            yield heappop(self._scheduled)[2]

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        program = self._programs.get(request.program) if request.program else None
        if program is None:
            return ()
        program.session.num_unfinished -= 1
        jobs: list[Job] = []
        if completed:
            # The program counts as busy while rows are read, so its own rows only join its queue, and are returned below. Rows
            # of other programs go to the iteration; with `max_sessions` it may be over, so they are returned too.
            self._read_next_of(program, jobs.append if self._max_sessions else self._schedule)
            program.idle_since = now
            self._send_next(program, jobs.append)
        else:
            self._cancel(program)
        if self._max_sessions is not None and self._is_over(program.session):
            self._num_open_sessions -= 1
            # Sessions start in place of the one that is over, but not before their recorded arrival.
            while self._next_row is not None and not self._must_wait(self._next_row):
                self._take_row(jobs.append, now)
        return jobs

    def is_program_over(self, program: str) -> bool:
        """Return whether no more requests of a program follow. Without think times rows are read when their time comes, so it
        may be over before this is known."""
        replayed = self._programs.get(program)
        if replayed is None or replayed.cancelled:
            return True
        is_idle = replayed.idle_since is not None and not replayed.num_own_waiting
        return is_idle and (self._reads_ahead or self._next_row is None)

    def _begins_session(self, row: TraceRow) -> bool:
        """Return whether `row`, the next one, is the first of a session."""
        return row.program not in self._programs and row.parent_program not in self._programs

    def _must_wait(self, row: TraceRow) -> bool:
        """Return whether `row` begins a session and as many sessions are open as may be."""
        full = self._max_sessions is not None and self._num_open_sessions >= self._max_sessions
        return full and self._begins_session(row)

    def _schedule(self, job: Job) -> None:
        heappush(self._scheduled, (job.request.arrival, job.request.id, job))

    def _begin_session(self, row: TraceRow) -> None:
        self._latest_session = _ReplaySession()
        self._num_open_sessions += 1
        self._latest_session.num_unfinished += 1
        self._programs[row.program] = _ReplayProgram(row.program, self._latest_session, row.arrival)

    def _take_row(self, send: Send, earliest: Micros = 0) -> None:
        """Read the next row, put it in its program, and send what is due."""
        row = self._next_row
        assert row is not None
        program, parent = self._programs.get(row.program), self._programs.get(row.parent_program)
        self._next_row = next(self._rows, None)
        if program:
            self._append_to(program, program, row, send)
        elif row.program and parent:
            sub_agent = self._programs[row.program] = _ReplayProgram(row.program, parent.session, row.arrival)
            # A sub-agent that starts after its parent has failed would not have been started.
            sub_agent.cancelled = parent.cancelled
            self._append_to(parent, sub_agent, row, send)
        else:
            if row.program:
                self._begin_session(row)
            send(self._job(row, max(self._recorded_arrival(row), earliest)))

    def _append_to(self, predecessor: _ReplayProgram, program: _ReplayProgram, row: TraceRow, send: Send) -> None:
        """Let `row` of `program` follow the request of `predecessor` that is under way, and those that wait before it."""
        if predecessor.cancelled:
            return
        program.session.num_unfinished += 1
        predecessor.waiting.append(row)
        predecessor.num_own_waiting += program is predecessor
        self._send_next(predecessor, send)

    def _send_next(self, program: _ReplayProgram, send: Send) -> None:
        """Send the waiting sub-agents of the program up to its own next request, and that, unless one of it is under way."""
        while program.waiting and program.idle_since is not None:
            row = program.waiting.pop(0)
            send(self._job(row, program.idle_since + self._think_time_before(program, row)))
            # The first request of a sub-agent does not keep its parent busy: both continue side by side.
            if row.program == program.program:
                program.last_recorded_arrival, program.idle_since = row.arrival, None
                program.num_own_waiting -= 1

    def _think_time_before(self, program: _ReplayProgram, row: TraceRow) -> Micros:
        if self._think_time is not None:
            return self._think_time
        return max(row.arrival - program.last_recorded_arrival, 0) if row.think_time is None else row.think_time

    def _read_next_of(self, program: _ReplayProgram, send: Send) -> None:
        """Read until the next request of `program` is found, if it may be due before its recorded arrival."""
        while self._reads_ahead and not program.num_own_waiting and self._next_row is not None:
            if self._by_session and (program.session is not self._latest_session or self._begins_session(self._next_row)):
                return
            self._take_row(send)

    def _cancel(self, program: _ReplayProgram) -> None:
        """End the program, and the sub-agents that have not started, without sending their requests."""
        program.cancelled = True
        for row in program.waiting:
            program.session.num_unfinished -= 1
            if row.program != program.program:
                self._cancel(self._programs[row.program])
        program.waiting.clear()

    def _is_over(self, session: _ReplaySession) -> bool:
        has_more_rows = (
            session is self._latest_session and self._next_row is not None and not self._begins_session(self._next_row)
        )
        return not session.num_unfinished and not has_more_rows

    def _recorded_arrival(self, row: TraceRow) -> Micros:
        """Return when `row` arrives if it waits for no answer."""
        recorded = row.arrival - self._origin
        return recorded if self._rate_scale == 1 else round(recorded / self._rate_scale)

    def _job(self, row: TraceRow, arrival: Micros) -> Job:
        return row_to_job(row, next(self._request_ids) if row.id is None else row.id, arrival)
