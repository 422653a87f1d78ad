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

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros, from_seconds
from maitred.queueing.base import SCHEDULERS, BaseQueue, PolicyInfo, earliest
from maitred.queueing.heap import SeqHeap


@SCHEDULERS.register("slo")
class SloUrgency(QueuePolicy):
    """By head start of the class, time waited and nearness of the deadline. `system`, `interactive`, `default` and `bulk` are
    the classes' head starts, `window` is the time before a deadline in which a request ages `pressure` times as fast. All but
    `pressure` in seconds."""

    about = PolicyInfo(
        summary="most urgent first: head start of the class + time waited + pressure of the deadline, in seconds",
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

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _SloQueue(self._head_starts, self._window, self._slope)


class _SloQueue(BaseQueue):
    def __init__(self, head_starts: dict[PriorityClass, Micros], window: Micros, slope: int) -> None:
        self._head_starts, self._window, self._slope = head_starts, window, slope
        self._normal = SeqHeap()
        """Urgency at t: t - key."""
        self._urgent = SeqHeap()
        """Urgency at t: (1 + slope) * t - key."""
        self._becoming_urgent: list[tuple[Micros, RequestId, SequenceState]] = []
        """When a calm one with a deadline becomes pressed."""
        self._now: Micros = 0

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        request, self._now = seq.request, now
        turn = self._urgent_from(request)
        if turn is not None and turn <= now:
            self._make_urgent(seq, turn)
            return
        self._normal.push((self._base_key(request), request.arrival, request.id), seq)
        if turn is not None:
            heappush(self._becoming_urgent, (turn, request.id, seq))

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._normal.remove(request_id) or self._urgent.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._now = now
        while self._becoming_urgent and self._becoming_urgent[0][0] <= now:
            turn, request_id, seq = heappop(self._becoming_urgent)
            if self._normal.remove(request_id) is not None:
                self._make_urgent(seq, turn)

    def peek(self) -> SequenceState | None:
        return self._head_heap().first()

    def pop(self) -> SequenceState:
        return self._head_heap().pop()

    def next_order_change(self, now: Micros) -> Micros | None:
        while self._becoming_urgent and self._becoming_urgent[0][1] not in self._normal:
            heappop(self._becoming_urgent)
        turn = max(self._becoming_urgent[0][0], now + 1) if self._becoming_urgent else None
        return earliest(turn, self._overtaken_at(now))

    def __len__(self) -> int:
        return len(self._normal) + len(self._urgent)

    def _base_key(self, request: Request) -> Micros:
        return request.arrival - self._head_starts[request.priority_class]

    def _urgent_from(self, request: Request) -> Micros | None:
        if request.deadline is None or not self._slope:
            return None
        return max(request.arrival, request.deadline - self._window)

    def _make_urgent(self, seq: SequenceState, turn: Micros) -> None:
        request = seq.request
        self._urgent.push((self._base_key(request) + self._slope * turn, request.arrival, request.id), seq)

    def _head_heap(self) -> SeqHeap:
        calm, pressed = self._normal.first_key(), self._urgent.first_key()
        if calm is None or pressed is None:
            return self._normal if pressed is None else self._urgent
        return self._urgent if self._urgent_first(pressed, calm, self._now) else self._normal

    def _urgent_first(self, pressed: SortKey, calm: SortKey, now: Micros) -> bool:
        lead = self._slope * now - (pressed[0] - calm[0])  # type: ignore[operator]
        return lead > 0 or (lead == 0 and pressed[1:] < calm[1:])

    def _overtaken_at(self, now: Micros) -> Micros | None:
        """When the head of the pressed goes before that of the calm; None if it does by now, or there are not both."""
        calm, pressed = self._normal.first_key(), self._urgent.first_key()
        if calm is None or pressed is None or self._urgent_first(pressed, calm, now):
            return None
        instant: Micros = -(-(pressed[0] - calm[0]) // self._slope)  # type: ignore[operator,assignment]
        return max(now + 1, instant)
