"""slo: class, age and deadline in one measure, seconds of waiting.

    urgency = head start of the class + time waited + (pressure - 1) * max(0, window - time to the deadline)

A class is worth so many seconds of head start, so a request of a lower class that has waited so much longer goes first, and
nobody starves. In the last `window` seconds before its deadline a request ages `pressure` times as fast.

Urgency grows with one of two slopes, so there are two heaps, each with a key that time does not change: *calm* requests, and
those that are *pressed*. Only their heads are compared, and it is known when a calm one becomes pressed and when the head of
the pressed will overtake that of the calm. All of it is in whole microseconds.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.queueing.heap import SeqHeap
from maitred.queueing.policy import SCHEDULERS, PolicyInfo, Queue
from maitred.queueing.wrapping import earliest
from maitred.request import PriorityClass, Request, RequestId
from maitred.seq import Seq
from maitred.units import Micros, from_seconds


@SCHEDULERS.register("slo")
class Slo(QueuePolicy):
    """By head start of the class, time waited and nearness of the deadline. `system`, `interactive`, `default` and `bulk` are
    the classes' head starts, `window` is the time before a deadline in which a request ages `pressure` times as fast. All but
    `pressure` in seconds."""

    about = PolicyInfo(
        line="most urgent first: head start of the class + time waited + pressure of the deadline, in seconds",
        complexity="O(log n) per request",
        starves="nobody: who has waited long enough overtakes every class",
    )

    def __init__(
        self,
        system: float = 120.0,
        interactive: float = 30.0,
        default: float = 10.0,
        bulk: float = 0.0,
        window: float = 10.0,
        pressure: int = 4,
    ) -> None:
        """Raises ValueError for spans that are negative or longer than 1e6 s, and unless `pressure` is from 1 to 1000."""
        spans = {"system": system, "interactive": interactive, "default": default, "bulk": bulk, "window": window}
        for name, span in spans.items():
            if not 0 <= span <= 1e6:
                raise ValueError(f"{name} must be from 0 to 1e6 seconds, not {span}")
        if not 1 <= pressure <= 1000:
            raise ValueError(f"pressure must be from 1 to 1000, not {pressure}")
        self._head_starts = {c: from_seconds(spans[c.label]) for c in PriorityClass}
        self._window = from_seconds(window)
        self._slope = pressure - 1

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _Urgency(self._head_starts, self._window, self._slope)


class _Urgency(Queue):
    def __init__(self, head_starts: dict[PriorityClass, Micros], window: Micros, slope: int) -> None:
        self._head_starts, self._window, self._slope = head_starts, window, slope
        self._calm = SeqHeap()
        """Urgency at t: t - key."""
        self._pressed = SeqHeap()
        """Urgency at t: (1 + slope) * t - key."""
        self._turns: list[tuple[Micros, RequestId, Seq]] = []
        """When a calm one with a deadline becomes pressed."""
        self._now: Micros = 0

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        request, self._now = seq.request, now
        turn = self._turn(request)
        if turn is not None and turn <= now:
            self._press(seq, turn)
            return
        self._calm.push((self._since(request), request.arrival, request.id), seq)
        if turn is not None:
            heappush(self._turns, (turn, request.id, seq))

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._calm.remove(request_id) or self._pressed.remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        self._now = now
        while self._turns and self._turns[0][0] <= now:
            turn, request_id, seq = heappop(self._turns)
            if self._calm.remove(request_id) is not None:
                self._press(seq, turn)

    def peek(self) -> Seq | None:
        return self._head().first()

    def pop(self) -> Seq:
        return self._head().pop()

    def stable_until(self, now: Micros) -> Micros | None:
        while self._turns and self._turns[0][1] not in self._calm:
            heappop(self._turns)
        turn = max(self._turns[0][0], now + 1) if self._turns else None
        return earliest(turn, self._overtaking(now))

    def __len__(self) -> int:
        return len(self._calm) + len(self._pressed)

    def _since(self, request: Request) -> Micros:
        return request.arrival - self._head_starts[request.priority_class]

    def _turn(self, request: Request) -> Micros | None:
        if request.deadline is None or not self._slope:
            return None
        return max(request.arrival, request.deadline - self._window)

    def _press(self, seq: Seq, turn: Micros) -> None:
        request = seq.request
        self._pressed.push((self._since(request) + self._slope * turn, request.arrival, request.id), seq)

    def _head(self) -> SeqHeap:
        calm, pressed = self._calm.first_key(), self._pressed.first_key()
        if calm is None or pressed is None:
            return self._calm if pressed is None else self._pressed
        return self._pressed if self._goes_before(pressed, calm, self._now) else self._calm

    def _goes_before(self, pressed: SortKey, calm: SortKey, now: Micros) -> bool:
        lead = self._slope * now - (pressed[0] - calm[0])  # type: ignore[operator]
        return lead > 0 or (lead == 0 and pressed[1:] < calm[1:])

    def _overtaking(self, now: Micros) -> Micros | None:
        """When the head of the pressed goes before that of the calm; None if it does by now, or there are not both."""
        calm, pressed = self._calm.first_key(), self._pressed.first_key()
        if calm is None or pressed is None or self._goes_before(pressed, calm, now):
            return None
        instant: Micros = -(-(pressed[0] - calm[0]) // self._slope)  # type: ignore[operator,assignment]
        return max(now + 1, instant)
