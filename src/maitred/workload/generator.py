"""The load generator: the jobs of a synthetic workload, merged in the order of arrival.

A heap holds the next arrival of every source that sends at times of its own. A job is drawn when it is taken, so a workload of
any size needs no memory. Jobs that follow from answers (`on_request_end`) go directly to the driver, which knows the time. All
jobs count against one `num_requests`.

A session continues when a round is complete, and ends when a round is rejected, dropped or times out. The same holds for the
users of a closed loop (BLIS).

Example: client a arrives at 10 and 40 ms, client b at 25 ms. The heap holds (10, a) and (25, b); the job of 10 ms is taken, and
(40, a) takes its place. Then come 25 and 40 ms. If a's first job begins a session that waits for answers, its second round is
not in the heap: it is made when the answer is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import count, repeat
from random import Random
from typing import Protocol

import msgspec

from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.workload.job import Job, ReadOnce
from maitred.workload.rates import ArrivalTimes, SenderRates
from maitred.workload.sessions import ClientSession, PieceNumbers, RoundSampler, VirtualClient
from maitred.workload.spec_clients import Client, Cohort, SenderSet


class ArrivalSource(Protocol):
    """A source of jobs at times of its own."""

    next_arrival: Micros | None
    """When its next job arrives, or None if there is none."""

    def next_job(self, generator: JobGenerator) -> Job:
        """Return the job that arrives at `next_arrival`, and advance `next_arrival`."""
        ...


class ClosedLoopUser(msgspec.Struct, frozen=True):
    """A user with one request or session at a time; the next one starts `think_time` after the answer."""

    client: VirtualClient
    think_time: Micros
    quota: SessionQuota


class SessionQuota:
    """How many more sessions the users of a client begin; None: any number."""

    def __init__(self, remaining: int | None) -> None:
        self._remaining = remaining

    @property
    def is_limited(self) -> bool:
        return self._remaining is not None

    def take(self) -> bool:
        """Return whether another session may begin, and count it."""
        if self._remaining is None:
            return True
        self._remaining -= 1
        return self._remaining >= 0


class JobGenerator(ReadOnce):
    """The jobs of a workload, once: a `ReactiveWorkload`."""

    def __init__(self, senders: SenderSet, seed: int, rate_scale: float) -> None:
        self.request_ids = count()
        self._num_remaining = senders.num_requests or math.inf
        self._horizon = senders.horizon or math.inf
        self._awaiting_answer: dict[RequestId, tuple[ClientSession, ClosedLoopUser | None]] = {}
        """The session, and the user if there is one, that continue when a request has its answer."""
        self._last_rounds: dict[str, RequestId | None] = {}
        """The last round of each program that is not over, or None while it has not been made."""
        self._source_numbers = count()
        self._sources: list[tuple[Micros, int, ArrivalSource]] = []
        """A heap of sources by their next arrival; the number keeps ties in the order in which they were added."""
        for source in _make_sources(senders, seed, rate_scale):
            self.add_source(source)

    def __iter__(self) -> Iterator[Job]:
        """Yield the jobs that arrive at times of their own. Raises ConfigError at the second reading."""
        self.begin_reading()
        while self._sources and self._num_remaining > 0 and self._sources[0][0] <= self._horizon:
            # A source is in the heap with one arrival only. So the heap grows with the number of senders and open sessions, and
            # not with the number of requests.
            source = heappop(self._sources)[2]
            self._num_remaining -= 1
            job = source.next_job(self)
            self.add_source(source)
            yield job

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        """Return the next round of the request's session, or the next request or session of its user."""
        session, user = self._awaiting_answer.pop(request.id, (None, None))
        if self._last_rounds.get(request.program) == request.id or not (completed or session is None):
            self._last_rounds.pop(request.program, None)
        if session is None:
            return ()
        if completed:
            session.on_answer(output_tokens)
            if not session.is_over:
                following: Sequence[ClientSession] = session.fork() or (session,)
                return self._next_rounds(following, now + session.think_time, user)
        if session.parent is not None:
            # A sub-agent has ended. The session that forked it continues after the last one, however they ended.
            session.parent.num_children -= 1
            return () if session.parent.num_children else self._next_rounds((session.parent,), now, user)
        # A prompt that contains the history cannot follow an answer that does not exist. So the session ends, and as in BLIS
        # its user sends no more, unless the number of sessions is given.
        if user is None or not (completed or user.quota.is_limited) or not user.quota.take():
            return ()
        return self._next_rounds((user.client.start_session(),), now + user.think_time, user)

    def _next_rounds(self, sessions: Sequence[ClientSession], at: Micros, user: ClosedLoopUser | None) -> Sequence[Job]:
        """Return the next round of each of `sessions`, as far as the workload has not ended."""
        jobs = []
        for session in sessions:
            if self._num_remaining <= 0 or at > self._horizon:
                self._last_rounds.pop(session.program, None)
                continue
            self._num_remaining -= 1
            jobs.append(self.next_round(session, at, user))
        return jobs

    def next_round(self, session: ClientSession, at: Micros, user: ClosedLoopUser | None = None) -> Job:
        """Return the next round of a session that continues after the answer to it."""
        job = session.next_job(next(self.request_ids), at)
        self.note_round(session, job)
        if user is not None or session.parent is not None or not session.is_over:
            self._awaiting_answer[job.request.id] = (session, user)
        return job

    def note_round(self, session: ClientSession, job: Job) -> None:
        """Note that a round of a session has been made."""
        self._last_rounds[session.program] = job.request.id if session.is_over else None

    def is_program_over(self, program: str) -> bool:
        """Return whether the last round of a program has ended."""
        return program not in self._last_rounds

    def add_source(self, source: ArrivalSource) -> None:
        """Add a source, or put it back after a job, unless it has no more jobs."""
        if source.next_arrival is not None:
            heappush(self._sources, (source.next_arrival, next(self._source_numbers), source))


class RateSource(ArrivalSource):
    """A client that sends requests, or first rounds of sessions, at a rate."""

    def __init__(self, sender: Client | Cohort, next_client: Callable[[], VirtualClient], arrival_times: ArrivalTimes) -> None:
        """`next_client` returns the client that sends the next request."""
        self._next_client = next_client
        self._arrival_times = arrival_times
        self._multi_turn = sender.multi_turn
        self._ignores_answers = sender.closed_loop is False
        self._advance()

    def _advance(self) -> None:
        self._arrival_time = next(self._arrival_times, None)
        self.next_arrival = None if self._arrival_time is None else self._arrival_time.at

    def next_job(self, generator: JobGenerator) -> Job:
        assert self._arrival_time is not None
        at, window = self._arrival_time.at, self._arrival_time.window
        self._advance()
        client = self._next_client()
        if self._multi_turn is None:
            return client.make_job(next(generator.request_ids), at, client.draw_round(window), None, "")
        if self._multi_turn.single_session:
            self.next_arrival = None
        session = client.start_session(window)
        if not self._ignores_answers:
            return generator.next_round(session, at)
        script = ScriptedSession(session, at)
        job = script.next_job(generator)
        generator.add_source(script)  # which takes the other rounds when they are due
        return job


class ScriptedSession(ArrivalSource):
    """A session with rounds that arrive at fixed times; its answers count as complete."""

    def __init__(self, session: ClientSession, at: Micros) -> None:
        self._session = session
        self.next_arrival: Micros | None = at

    def next_job(self, generator: JobGenerator) -> Job:
        assert self.next_arrival is not None
        job = self._session.next_job(next(generator.request_ids), self.next_arrival)
        generator.note_round(self._session, job)
        self._session.on_answer(job.output_tokens)
        self.next_arrival = None if self._session.is_over else self.next_arrival + self._session.think_time
        return job


class FirstRequest(ArrivalSource):
    """The first request of a user of a closed loop."""

    def __init__(self, user: ClosedLoopUser, at: Micros) -> None:
        self._user = user
        self.next_arrival: Micros | None = at

    def next_job(self, generator: JobGenerator) -> Job:
        assert self.next_arrival is not None
        at, self.next_arrival = self.next_arrival, None
        return generator.next_round(self._user.client.start_session(), at, self._user)


def _client_source(client: Client, seed: int, rates: SenderRates, piece_numbers: PieceNumbers) -> ArrivalSource:
    """Return the source of one client that sends at a rate of its own."""
    virtual_client = VirtualClient(client, client.id, RoundSampler(client, f"{seed}/{client.id}"), piece_numbers)
    arrival_times = rates.arrival_times(client, f"{seed}/{client.id}/arrivals")
    return RateSource(client, repeat(virtual_client).__next__, arrival_times)


def _make_sources(senders: SenderSet, seed: int, rate_scale: float) -> Iterator[ArrivalSource]:
    rates, piece_numbers = SenderRates(senders, rate_scale), PieceNumbers()
    for client in senders.clients:
        if client.concurrency:
            yield from _closed_loop_users(client, seed, piece_numbers)
        else:
            yield _client_source(client, seed, rates, piece_numbers)
    for cohort in senders.cohorts:
        single_session = cohort.multi_turn is not None and cohort.multi_turn.single_session
        if cohort.arrival.process == "poisson" and not single_session:
            yield _poisson_cohort(cohort, seed, rates, piece_numbers)
        else:
            yield from _cohort_members(cohort, seed, rates, piece_numbers)


def _poisson_cohort(cohort: Cohort, seed: int, rates: SenderRates, piece_numbers: PieceNumbers) -> RateSource:
    """Return all members as one source, so that their number costs nothing.

    The sum of Poisson processes is a Poisson process of which each arrival belongs to each member with the same probability.
    """
    sampler, member_draw = RoundSampler(cohort, f"{seed}/{cohort.id}"), Random(f"{seed}/{cohort.id}/members").random

    @cache
    def member(number: int) -> VirtualClient:
        return VirtualClient(cohort, f"{cohort.id}-{number}", sampler, piece_numbers)

    arrival_times = rates.arrival_times(cohort, f"{seed}/{cohort.id}/arrivals")
    return RateSource(cohort, lambda: member(int(member_draw() * cohort.population)), arrival_times)


def _cohort_members(cohort: Cohort, seed: int, rates: SenderRates, piece_numbers: PieceNumbers) -> Iterator[RateSource]:
    """Yield each member as a source with arrivals of its own. Its rounds come from the random streams of the cohort."""
    sampler, share = RoundSampler(cohort, f"{seed}/{cohort.id}"), 1.0 if cohort.arrival.own_rate else 1.0 / cohort.population
    for number in range(cohort.population):
        name = f"{cohort.id}-{number}"
        arrival_times = rates.arrival_times(cohort, f"{seed}/{name}/arrivals", share)
        member = VirtualClient(cohort, name, sampler, piece_numbers)
        yield RateSource(cohort, repeat(member).__next__, arrival_times)


def _closed_loop_users(client: Client, seed: int, piece_numbers: PieceNumbers) -> Iterator[FirstRequest]:
    """Yield the first request of each user. They start one after the other within the think time, and not all at once."""
    think_time, quota = client.think_time_us or 0, SessionQuota(client.sessions)
    for number in range(client.concurrency):
        if not quota.take():
            return
        name = f"{client.id}-{number}"
        virtual_client = VirtualClient(client, name, RoundSampler(client, f"{seed}/{name}"), piece_numbers)
        yield FirstRequest(ClosedLoopUser(virtual_client, think_time, quota), think_time * number // client.concurrency)
