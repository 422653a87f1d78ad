"""The gate: admission in the way of requests. It asks the core, does what the core decides, and sees to its timer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from maitred.admission import Action, End
from maitred.decisions import Decision
from maitred.request import Request, RequestId
from maitred.seq import Seq
from maitred.sim.agenda import Agenda, Kind
from maitred.sim.columns import NEVER, Outcome
from maitred.sim.entrance import Entrance
from maitred.sim.journey import Journey
from maitred.sim.replica import Replica
from maitred.units import Micros
from maitred.workload import Job

_ADMIT, _REJECT, _PREEMPT = Action.ADMIT, Action.REJECT, Action.PREEMPT


class Way(Protocol):
    """What can be done with those who ask."""

    live: dict[RequestId, Journey]

    def admitted(self, journey: Journey, now: Micros) -> None: ...

    def withdraw(self, journey: Journey, now: Micros) -> None:
        """Its work ends at once; it has not ended yet."""
        ...

    def end(
        self, journey: Journey, outcome: Outcome, at: Micros, seq: Seq | None = None, replica: Replica | None = None
    ) -> None: ...


class Gate:
    """See the module."""

    def __init__(self, entrance: Entrance, agenda: Agenda, way: Way) -> None:
        self._entrance = entrance
        self._core = entrance.core
        self._agenda = agenda
        self._way = way
        self._due: Micros | None = None
        """When the timer rings for which there is an entry in the agenda."""

    def identify(self, job: Job) -> Job:
        """`job` with its effective class."""
        return self._entrance.identify(job)

    def ask(self, request: Request, now: Micros) -> None:
        """May it enter?"""
        self._obey(self._entrance.submit(request, now), now)

    def first_byte(self, request: Request, now: Micros) -> None:
        """Its first token is out: whoever streams has seen it."""
        if request.stream:
            self._core.first_byte(request.id, now)

    def over(self, request_id: RequestId, end: End, now: Micros) -> None:
        """It has ended, in whatever way."""
        self._obey(self._core.release(request_id, end, now), now)

    def timer(self, now: Micros) -> None:
        """It is up."""
        self._due = None
        self._obey(self._core.advance(now), now)

    def _obey(self, decisions: Sequence[Decision], now: Micros) -> None:
        """Each in its turn. What obeying brings about is decided anew, and obeyed after the rest."""
        while decisions:
            after: list[Decision] = []
            for decision in decisions:
                journey = self._way.live.get(decision.subject)
                if journey is None:
                    continue  # it gave up at this very instant
                action = decision.action
                if action is _ADMIT:
                    self._way.admitted(journey, now)
                elif action is _REJECT:
                    self._way.end(journey, Outcome.REJECTED, now)
                elif action is _PREEMPT:
                    after += self._preempt(journey, now)
            decisions = after
        due = self._core.next_deadline()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._agenda.push(due, Kind.ADMISSION)

    def _preempt(self, journey: Journey, now: Micros) -> Sequence[Decision]:
        """Its slot is wanted: its work ends here and now. What is decided next, of itself too if it may try again."""
        number, replica = journey.job.request.id, journey.replica
        self._way.withdraw(journey, now)
        decisions = self._core.release(number, End.PREEMPTED, now)
        if any(decision.subject == number for decision in decisions):
            journey.retries += 1
            journey.admitted = journey.queued = NEVER
        else:
            self._way.end(journey, Outcome.PREEMPTED, now, None, replica)
        return decisions
