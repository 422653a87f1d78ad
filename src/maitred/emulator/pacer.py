"""The pacer: lets an instance's virtual steps end when the clock says so.

It alone owns the instance, the translation of the clock into virtual time and one timer, set at the end of the step in
progress. When the timer goes off, every step that is due by then ends at the instant that *it* was due, however late the
timer is: the next step begins there too, so lateness never adds up, and a process that was held up catches up. What comes
in from outside (a request, a client who leaves) comes in at the instant that it is; the steps that ended before are made
up first.

Whoever wants tokens is told how many there are by now, once per wake-up however many steps it made up, and makes the text
itself. There is no task, no queue and no timer per request or token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from maitred.emulator.endings import Ending, FinishReason
from maitred.emulator.metrics import Course, EngineMetrics
from maitred.instance import EventKind, Instance, InstanceEvent
from maitred.request import Request, RequestId
from maitred.units import Micros, from_seconds, to_seconds

Listener: TypeAlias = Callable[[int], object]
"""Is told how many tokens of an answer are out, whenever there are more. It must not call the pacer back."""


class Timer(Protocol):
    def cancel(self) -> object: ...


class Clock(Protocol):
    """What the pacer needs of an event loop."""

    def time(self) -> float:
        """Seconds, never running backwards."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Answer:
    """An answer on its way, and how far it is."""

    __slots__ = ("emitted", "ending", "first_token_at", "last_token_at", "listener", "request", "scheduled_at", "told")

    def __init__(self, request: Request, ending: Ending, listener: Listener) -> None:
        self.request = request
        self.ending = ending
        self.listener = listener
        self.emitted = 0
        self.told = 0
        """The part of `emitted` that the listener knows of."""
        self.scheduled_at: Micros = 0
        self.first_token_at: Micros = 0
        self.last_token_at: Micros = 0


class Pacer:
    """Drives one instance (made with `step_by_step`) by a clock; `speed` virtual seconds pass per second."""

    def __init__(self, instance: Instance, clock: Clock, metrics: EngineMetrics, *, speed: float = 1.0) -> None:
        self._instance = instance
        self._clock = clock
        self._metrics = metrics
        self._speed = speed
        self._origin = clock.time()
        self._answers: dict[RequestId, Answer] = {}
        self._started: dict[RequestId, Answer] = {}
        """Those that have had their first token: only they can have new ones."""
        self._timer: Timer | None = None

    def now(self) -> Micros:
        """Virtual time."""
        return from_seconds((self._clock.time() - self._origin) * self._speed)

    def submit(self, *answers: Answer) -> None:
        """Their requests enter the wait queue in the same instant. The instance must not refuse them, and `now()` must be
        their arrival."""
        now = self._catch_up()
        for answer in answers:
            self._answers[answer.request.id] = answer
            self._instance.enqueue(answer.request, answer.ending.tokens, now)
        self._arm()

    def abort(self, request_id: RequestId) -> bool:
        """Nobody wants the answer any more: it leaves the queue, or the running batch, at once. False: it is not here."""
        now = self._catch_up()
        here = self._instance.abort(request_id, now)
        if here:
            del self._answers[request_id]
            self._started.pop(request_id, None)
            self._metrics.ended(FinishReason.ABORT)
        self._arm()
        return here

    def _wake(self) -> None:
        self._timer = None
        try:
            self._catch_up()
        finally:
            self._arm()

    def _catch_up(self) -> Micros:
        """End every step that is due, tell the listeners, and say what time it is."""
        now = self.now()
        ended: list[Answer] = []
        while (due := self._instance.next_event()) is not None and due <= now:
            self._step_ended(due, ended)
        self._tell(ended)
        return now

    def _step_ended(self, due: Micros, ended: list[Answer]) -> None:
        for event in self._instance.advance(due):
            if event.kind is EventKind.FIRST_TOKEN:
                self._first_token(event)
            elif event.kind is EventKind.PREEMPTED:
                self._metrics.preempted()
            elif event.kind is EventKind.FINISHED:
                ended.append(self._finished(event))
        for request_id, answer in self._started.items():
            self._count(answer, self._instance.emitted(request_id), due)

    def _first_token(self, event: InstanceEvent) -> None:
        seq, request = event.seq, event.seq.request
        assert seq.scheduled_at is not None
        answer = self._started[request.id] = self._answers[request.id]
        answer.scheduled_at, answer.first_token_at = seq.scheduled_at, event.at
        self._metrics.first_token(request, event.at, seq.scheduled_at, seq.cached)

    def _finished(self, event: InstanceEvent) -> Answer:
        answer = self._answers.pop(event.seq.request.id)
        del self._started[event.seq.request.id]
        self._count(answer, event.seq.emitted, event.at)
        course = Course(
            scheduled=answer.scheduled_at,
            first_token=answer.first_token_at,
            last_token=event.at,
            output_tokens=answer.emitted,
            preemptions=event.seq.preemptions,
        )
        self._metrics.finished(answer.request, course, answer.ending.reason)
        return answer

    def _count(self, answer: Answer, emitted: int, at: Micros) -> None:
        fresh = emitted - answer.emitted
        if not fresh:
            return
        if answer.emitted:
            self._metrics.token_gap(at - answer.last_token_at)
        self._metrics.generated(fresh)
        answer.emitted, answer.last_token_at = emitted, at

    def _tell(self, ended: list[Answer]) -> None:
        for answer in (*self._started.values(), *ended):
            if answer.emitted > answer.told:
                answer.told = answer.emitted
                answer.listener(answer.emitted)

    def _arm(self) -> None:
        """Set the timer at the end of the step in progress; this begins the step that is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._instance.next_event()
        if due is not None:
            when = self._origin + to_seconds(due) / self._speed
            self._timer = self._clock.call_at(when, self._wake)
