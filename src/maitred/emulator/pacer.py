"""The pacer: it ends the steps of an instance in virtual time when a real clock says so.

The pacer owns the instance, the translation of clock time into virtual time, and one timer, set at the end of the step in
progress. When the timer fires, every step that is due ends at the instant at which it was due, however late the timer is, and
the next step begins there. So lateness never adds up, and a process that was held up catches up. Example with steps of 11 ms: a
timer that should fire at 11 ms fires at 30 ms; the steps end at 11 and 22 ms, and the timer is set at 33 ms.

A new request or an abort takes effect at the instant at which it comes, after the steps that ended before.

A listener learns the number of its tokens once per wake-up, however many steps that were, and makes the text itself. There is
no task, no queue and no timer per request or token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.units import Micros, from_seconds, to_seconds
from maitred.emulator.metrics import EmulatedMetrics, RequestInstants
from maitred.emulator.tokens import FinishReason, PlannedFinish
from maitred.instance import EventKind, Instance, InstanceEvent
from maitred.wire.clock import Clock

TIMER_GRAIN_SECS = 0.001
"""Resolution of uvloop's timers and of its `loop.time()`."""

ProgressListener: TypeAlias = Callable[[int], object]
"""A function that is called with the number of tokens of an answer when it has grown. It must not call the pacer."""


class PacerTimer(Protocol):
    def cancel(self) -> object: ...


class PacerClock(Protocol):
    """What the pacer needs of an event loop."""

    def time(self) -> float:
        """Return monotonic time in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> PacerTimer: ...


class MachineClock:
    """The clock of the machine, with the timers of the running loop, which fire late rather than early.

    A timer that fires a fraction too early would be set again for nothing, again and again until the instant has come.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def time(self) -> float:
        return to_seconds(self._clock.now())

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        delay = when - self.time()
        return asyncio.get_running_loop().call_later(delay + TIMER_GRAIN_SECS / 2 if delay > 0 else 0, callback)


class PacedAnswer:
    """An answer that is being generated."""

    __slots__ = (
        "conversation_prefix",
        "first_token_at",
        "last_token_at",
        "listener",
        "num_output_tokens",
        "num_reported_tokens",
        "planned_finish",
        "request",
        "scheduled_at",
    )

    def __init__(
        self,
        request: Request,
        planned_finish: PlannedFinish,
        listener: ProgressListener,
        conversation_prefix: PrefixKeys | None = None,
    ) -> None:
        """`conversation_prefix` is the content of prompt and answer together, if later prompts may begin with it."""
        self.request = request
        self.conversation_prefix = conversation_prefix
        self.planned_finish = planned_finish
        self.listener = listener
        self.num_output_tokens = 0
        self.num_reported_tokens = 0
        """Tokens that have been reported to the listener."""
        self.scheduled_at: Micros = 0
        self.first_token_at: Micros = 0
        self.last_token_at: Micros = 0


class Pacer:
    """Drives one instance, made with `step_by_step`, by a clock; `speed` virtual seconds pass per second."""

    def __init__(self, instance: Instance, clock: PacerClock, metrics: EmulatedMetrics, *, speed: float = 1.0) -> None:
        self._instance = instance
        self._clock = clock
        self._metrics = metrics
        self._speed = speed
        self._origin = clock.time()
        self._answers: dict[RequestId, PacedAnswer] = {}
        self._decoding: dict[RequestId, PacedAnswer] = {}
        """Answers that have their first token. Only these can have new tokens."""
        self._timer: PacerTimer | None = None

    def now(self) -> Micros:
        """Return the virtual time."""
        return from_seconds((self._clock.time() - self._origin) * self._speed)

    def submit(self, *answers: PacedAnswer) -> None:
        """Enqueue the requests of the answers at the same instant. Their arrival must be `now()`, and the instance must not
        reject them."""
        # A request that was enqueued before the steps that are overdue would join a step that began before it came.
        now = self._catch_up()
        for answer in answers:
            self._answers[answer.request.id] = answer
            tokens = answer.planned_finish.output_tokens
            self._instance.enqueue(answer.request, tokens, now, answer.conversation_prefix)
        self._set_timer()

    def abort(self, request_id: RequestId) -> bool:
        """Take a request out of the queue or the running batch. Return whether it was there."""
        now = self._catch_up()
        found = self._instance.abort(request_id, now)
        if found:
            del self._answers[request_id]
            self._decoding.pop(request_id, None)
            self._metrics.on_end(FinishReason.ABORT)
        self._set_timer()
        return found

    def _on_timer(self) -> None:
        self._timer = None
        # A listener that raises must not stop the engine for all other requests.
        try:
            self._catch_up()
        finally:
            self._set_timer()

    def _catch_up(self) -> Micros:
        """End every step that is due, call the listeners, and return the virtual time."""
        now = self.now()
        finished: list[PacedAnswer] = []
        while (due := self._instance.next_event()) is not None and due <= now:
            self._end_step(due, finished)
        self._report_progress(finished)
        return now

    def _end_step(self, due: Micros, finished: list[PacedAnswer]) -> None:
        for event in self._instance.advance(due):
            if event.kind is EventKind.FIRST_TOKEN:
                self._on_first_token(event)
            elif event.kind is EventKind.KV_PREEMPTED:
                self._metrics.on_kv_preempted()
            elif event.kind is EventKind.FINISHED:
                finished.append(self._on_finished(event))
        # After the events, so that first tokens of this step count and answers that ended with it are out.
        for request_id, answer in self._decoding.items():
            self._count_tokens(answer, self._instance.num_output_tokens(request_id), due)

    def _on_first_token(self, event: InstanceEvent) -> None:
        seq, request = event.seq, event.seq.request
        assert seq.scheduled_at is not None
        answer = self._decoding[request.id] = self._answers[request.id]
        answer.scheduled_at, answer.first_token_at = seq.scheduled_at, event.at
        self._metrics.on_first_token(request, event.at, seq.scheduled_at, seq.num_cached_tokens)

    def _on_finished(self, event: InstanceEvent) -> PacedAnswer:
        answer = self._answers.pop(event.seq.request.id)
        del self._decoding[event.seq.request.id]
        self._count_tokens(answer, event.seq.num_output_tokens, event.at)
        times = RequestInstants(
            scheduled=answer.scheduled_at,
            first_token=answer.first_token_at,
            last_token=event.at,
            output_tokens=answer.num_output_tokens,
            preemptions=event.seq.num_preemptions,
        )
        self._metrics.on_finished(answer.request, times, answer.planned_finish.reason)
        return answer

    def _count_tokens(self, answer: PacedAnswer, num_output_tokens: int, at: Micros) -> None:
        num_new = num_output_tokens - answer.num_output_tokens
        if not num_new:
            return
        if answer.num_output_tokens:
            self._metrics.observe_token_gap(at - answer.last_token_at)
        self._metrics.count_output_tokens(num_new)
        answer.num_output_tokens, answer.last_token_at = num_output_tokens, at

    def _report_progress(self, finished: list[PacedAnswer]) -> None:
        # Once per wake-up and not per step: a timer that is late by ten steps costs each client one write and not ten.
        for answer in (*self._decoding.values(), *finished):
            if answer.num_output_tokens > answer.num_reported_tokens:
                answer.num_reported_tokens = answer.num_output_tokens
                answer.listener(answer.num_output_tokens)

    def _set_timer(self) -> None:
        """Set the timer at the end of the step in progress. `next_event` begins the step that is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._instance.next_event()
        if due is not None:
            when = self._origin + to_seconds(due) / self._speed
            self._timer = self._clock.call_at(when, self._on_timer)
