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

from maitred.request import Request, RequestId
from maitred.units import Micros
from maitred.workload.job import Job
from maitred.workload.pace import Instants, Paces
from maitred.workload.sessions import Asker, Groups, Session, Turns
from maitred.workload.spec import Workload
from maitred.workload.spec_clients import Client, Cohort


class Source(Protocol):
    """Somebody who sends at times of his own."""

    at: Micros | None
    """When he sends next; None: no more."""

    def send(self, to: Generated) -> Job:
        """What he sends at `at`, which moves on."""
        ...


class User(msgspec.Struct, frozen=True):
    """Of a closed loop: has one request or session at a time, and begins the next when he has read the answer."""

    asker: Asker
    think: Micros


class Generated:
    """The jobs of a workload, once. A `Reactive`."""

    def __init__(self, workload: Workload, seed: int, rate_scale: float) -> None:
        self.ids = count()
        self._left = workload.num_requests or math.inf
        self._horizon = workload.horizon or math.inf
        self._waiting: dict[RequestId, tuple[Session, User | None]] = {}
        """Who goes on when the answer to a request has come."""
        self._order = count()
        self._due: list[tuple[Micros, int, Source]] = []
        for source in _sources(workload, seed, rate_scale):
            self.add(source)

    def __iter__(self) -> Iterator[Job]:
        """Those that come at times of their own."""
        while self._due and self._left > 0 and self._due[0][0] <= self._horizon:
            source = heappop(self._due)[2]
            self._left -= 1
            job = source.send(self)
            self.add(source)
            yield job

    def ended(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        """The next round of its session, or what its user asks next."""
        session, user = self._waiting.pop(request.id, (None, None))
        if session is None or not completed:
            return ()
        session.hear(output_tokens)
        at = now + session.asker.rounds.think_time_us
        if session.over:
            if user is None:
                return ()
            session, at = user.asker.session(), now + user.think
        if self._left <= 0 or at > self._horizon:
            return ()
        self._left -= 1
        return (self.ask(session, at, user),)

    def ask(self, session: Session, at: Micros, user: User | None = None) -> Job:
        """Its next round, after whose answer it goes on."""
        job = session.ask(next(self.ids), at)
        if user is not None or not session.over:
            self._waiting[job.request.id] = (session, user)
        return job

    def add(self, source: Source) -> None:
        """Let somebody send at times of his own."""
        if source.at is not None:
            heappush(self._due, (source.at, next(self._order), source))


class Stream(Source):
    """A client that sends at a rate: requests, or sessions of which the first round comes so."""

    def __init__(self, sender: Client | Cohort, who: Callable[[], Asker], instants: Instants) -> None:
        """`who` sends next."""
        self._who = who
        self._instants = instants
        self._turns = sender.multi_turn
        self._scripted = sender.closed_loop is False
        self._move()

    def _move(self) -> None:
        self._instant = next(self._instants, None)
        self.at = None if self._instant is None else self._instant.at

    def send(self, to: Generated) -> Job:
        assert self._instant is not None
        at, window = self._instant.at, self._instant.window
        self._move()
        asker = self._who()
        if self._turns is None:
            return asker.job(next(to.ids), at, asker.turn(window), None, "")
        if self._turns.single_session:
            self.at = None
        session = asker.session(window)
        if not self._scripted:
            return to.ask(session, at)
        script = Script(session, at)
        job = script.send(to)
        to.add(script)
        return job


class Script(Source):
    """A session whose rounds come at their times, whatever becomes of those before: the answers are taken as given."""

    def __init__(self, session: Session, at: Micros) -> None:
        self._session = session
        self.at: Micros | None = at

    def send(self, to: Generated) -> Job:
        assert self.at is not None
        job = self._session.ask(next(to.ids), self.at)
        self._session.hear(job.output_tokens)
        self.at = None if self._session.over else self.at + self._session.asker.rounds.think_time_us
        return job


class Beginning(Source):
    """The first request of a user."""

    def __init__(self, user: User, at: Micros) -> None:
        self._user = user
        self.at: Micros | None = at

    def send(self, to: Generated) -> Job:
        assert self.at is not None
        at, self.at = self.at, None
        return to.ask(self._user.asker.session(), at, self._user)


def _sources(workload: Workload, seed: int, rate_scale: float) -> Iterator[Source]:
    paces, groups = Paces(workload, rate_scale), Groups()
    for client in workload.clients:
        if client.concurrency:
            yield from _users(client, seed, groups)
        else:
            asker = Asker(client, client.id, Turns(client, f"{seed}/{client.id}"), groups)
            yield Stream(client, repeat(asker).__next__, paces.instants(client, f"{seed}/{client.id}/arrivals"))
    for cohort in workload.cohorts:
        single = cohort.multi_turn is not None and cohort.multi_turn.single_session
        if cohort.arrival.process == "poisson" and not single:
            yield _crowd(cohort, seed, paces, groups)
        else:
            yield from _members(cohort, seed, paces, groups)


def _crowd(cohort: Cohort, seed: int, paces: Paces, groups: Groups) -> Stream:
    """All members at once: Poisson processes add up to one, of which each arrival is any member's as likely as another's. So it
    costs nothing how many there are."""
    turns, members = Turns(cohort, f"{seed}/{cohort.id}"), Random(f"{seed}/{cohort.id}/members").random

    @cache
    def member(number: int) -> Asker:
        return Asker(cohort, f"{cohort.id}-{number}", turns, groups)

    instants = paces.instants(cohort, f"{seed}/{cohort.id}/arrivals")
    return Stream(cohort, lambda: member(int(members() * cohort.population)), instants)


def _members(cohort: Cohort, seed: int, paces: Paces, groups: Groups) -> Iterator[Stream]:
    """One by one. Each has arrivals of its own; what they say comes from the streams of the cohort."""
    turns, share = Turns(cohort, f"{seed}/{cohort.id}"), 1.0 if cohort.arrival.own_rate else 1.0 / cohort.population
    for number in range(cohort.population):
        name = f"{cohort.id}-{number}"
        instants = paces.instants(cohort, f"{seed}/{name}/arrivals", share)
        yield Stream(cohort, repeat(Asker(cohort, name, turns, groups)).__next__, instants)


def _users(client: Client, seed: int, groups: Groups) -> Iterator[Beginning]:
    """They begin one after the other within the time that they think, so that they do not think in step."""
    think = client.think_time_us or 0
    for number in range(client.concurrency):
        name = f"{client.id}-{number}"
        user = User(Asker(client, name, Turns(client, f"{seed}/{name}"), groups), think)
        yield Beginning(user, think * number // client.concurrency)
