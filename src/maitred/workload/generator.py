"""A synthetic workload under way: the jobs of all its clients, merged as they come due, and those that answers bring about.

One heap holds the next arrival of everybody who sends at times of his own; a job is drawn when it is taken, never before.
What follows from answers (`ended`) goes to the driver, who knows when. All count against the same number of requests.

A session goes on when a round is complete, and ends when it is not: whoever got no answer has nothing to ask about. The same
holds for the users of a closed loop (BLIS).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import count, repeat
from random import Random
from typing import Protocol

import msgspec

from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.workload.job import Job
from maitred.workload.rates import ArrivalTimes, SenderRates
from maitred.workload.sessions import ClientSession, PieceNumbers, RoundSampler, VirtualClient
from maitred.workload.spec import Workload
from maitred.workload.spec_clients import Client, Cohort


class ArrivalSource(Protocol):
    """Somebody who sends at times of his own."""

    next_arrival: Micros | None
    """When he sends next; None: no more."""

    def next_job(self, generator: JobGenerator) -> Job:
        """What he sends at `at`, which moves on."""
        ...


class ClosedLoopUser(msgspec.Struct, frozen=True):
    """Of a closed loop: has one request or session at a time, and begins the next when he has read the answer."""

    client: VirtualClient
    think_time: Micros


class JobGenerator:
    """The jobs of a workload, once. A `ReactiveWorkload`."""

    def __init__(self, workload: Workload, seed: int, rate_scale: float) -> None:
        self.request_ids = count()
        self._num_remaining = workload.num_requests or math.inf
        self._horizon = workload.horizon or math.inf
        self._awaiting_answer: dict[RequestId, tuple[ClientSession, ClosedLoopUser | None]] = {}
        """Who goes on when the answer to a request has come."""
        self._source_numbers = count()
        self._sources: list[tuple[Micros, int, ArrivalSource]] = []
        for source in _make_sources(workload, seed, rate_scale):
            self.add_source(source)

    def __iter__(self) -> Iterator[Job]:
        """Those that come at times of their own."""
        while self._sources and self._num_remaining > 0 and self._sources[0][0] <= self._horizon:
            source = heappop(self._sources)[2]
            self._num_remaining -= 1
            job = source.next_job(self)
            self.add_source(source)
            yield job

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        """The next round of its session, or what its user asks next."""
        session, user = self._awaiting_answer.pop(request.id, (None, None))
        if session is None or not completed:
            return ()
        session.on_answer(output_tokens)
        at = now + session.client.multi_turn.think_time_us
        if session.is_over:
            if user is None:
                return ()
            session, at = user.client.start_session(), now + user.think_time
        if self._num_remaining <= 0 or at > self._horizon:
            return ()
        self._num_remaining -= 1
        return (self.next_round(session, at, user),)

    def next_round(self, session: ClientSession, at: Micros, user: ClosedLoopUser | None = None) -> Job:
        """Its next round, after whose answer it goes on."""
        job = session.next_job(next(self.request_ids), at)
        if user is not None or not session.is_over:
            self._awaiting_answer[job.request.id] = (session, user)
        return job

    def add_source(self, source: ArrivalSource) -> None:
        """Let somebody send at times of his own."""
        if source.next_arrival is not None:
            heappush(self._sources, (source.next_arrival, next(self._source_numbers), source))


class RateSource(ArrivalSource):
    """A client that sends at a rate: requests, or sessions of which the first round comes so."""

    def __init__(self, sender: Client | Cohort, next_client: Callable[[], VirtualClient], arrival_times: ArrivalTimes) -> None:
        """`who` sends next."""
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
        asker = self._next_client()
        if self._multi_turn is None:
            return asker.make_job(next(generator.request_ids), at, asker.draw_round(window), None, "")
        if self._multi_turn.single_session:
            self.next_arrival = None
        session = asker.start_session(window)
        if not self._ignores_answers:
            return generator.next_round(session, at)
        script = ScriptedSession(session, at)
        job = script.next_job(generator)
        generator.add_source(script)
        return job


class ScriptedSession(ArrivalSource):
    """A session whose rounds come at their times, whatever becomes of those before: the answers are taken as given."""

    def __init__(self, session: ClientSession, at: Micros) -> None:
        self._session = session
        self.next_arrival: Micros | None = at

    def next_job(self, generator: JobGenerator) -> Job:
        assert self.next_arrival is not None
        job = self._session.next_job(next(generator.request_ids), self.next_arrival)
        self._session.on_answer(job.output_tokens)
        self.next_arrival = None if self._session.is_over else self.next_arrival + self._session.client.multi_turn.think_time_us
        return job


class FirstRequest(ArrivalSource):
    """The first request of a user."""

    def __init__(self, user: ClosedLoopUser, at: Micros) -> None:
        self._user = user
        self.next_arrival: Micros | None = at

    def next_job(self, generator: JobGenerator) -> Job:
        assert self.next_arrival is not None
        at, self.next_arrival = self.next_arrival, None
        return generator.next_round(self._user.client.start_session(), at, self._user)


def _make_sources(workload: Workload, seed: int, rate_scale: float) -> Iterator[ArrivalSource]:
    paces, groups = SenderRates(workload, rate_scale), PieceNumbers()
    for client in workload.clients:
        if client.concurrency:
            yield from _closed_loop_users(client, seed, groups)
        else:
            asker = VirtualClient(client, client.id, RoundSampler(client, f"{seed}/{client.id}"), groups)
            yield RateSource(client, repeat(asker).__next__, paces.arrival_times(client, f"{seed}/{client.id}/arrivals"))
    for cohort in workload.cohorts:
        single = cohort.multi_turn is not None and cohort.multi_turn.single_session
        if cohort.arrival.process == "poisson" and not single:
            yield _poisson_cohort(cohort, seed, paces, groups)
        else:
            yield from _cohort_members(cohort, seed, paces, groups)


def _poisson_cohort(cohort: Cohort, seed: int, paces: SenderRates, groups: PieceNumbers) -> RateSource:
    """All members at once: Poisson processes add up to one, of which each arrival is any member's as likely as another's. So it
    costs nothing how many there are."""
    turns, members = RoundSampler(cohort, f"{seed}/{cohort.id}"), Random(f"{seed}/{cohort.id}/members").random

    @cache
    def member(number: int) -> VirtualClient:
        return VirtualClient(cohort, f"{cohort.id}-{number}", turns, groups)

    instants = paces.arrival_times(cohort, f"{seed}/{cohort.id}/arrivals")
    return RateSource(cohort, lambda: member(int(members() * cohort.population)), instants)


def _cohort_members(cohort: Cohort, seed: int, paces: SenderRates, groups: PieceNumbers) -> Iterator[RateSource]:
    """One by one. Each has arrivals of its own; what they say comes from the streams of the cohort."""
    turns, share = RoundSampler(cohort, f"{seed}/{cohort.id}"), 1.0 if cohort.arrival.own_rate else 1.0 / cohort.population
    for number in range(cohort.population):
        name = f"{cohort.id}-{number}"
        instants = paces.arrival_times(cohort, f"{seed}/{name}/arrivals", share)
        yield RateSource(cohort, repeat(VirtualClient(cohort, name, turns, groups)).__next__, instants)


def _closed_loop_users(client: Client, seed: int, groups: PieceNumbers) -> Iterator[FirstRequest]:
    """They begin one after the other within the time that they think, so that they do not think in step."""
    think = client.think_time_us or 0
    for number in range(client.concurrency):
        name = f"{client.id}-{number}"
        user = ClosedLoopUser(VirtualClient(client, name, RoundSampler(client, f"{seed}/{name}"), groups), think)
        yield FirstRequest(user, think * number // client.concurrency)
