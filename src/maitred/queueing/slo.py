"""slo: class, age and deadline in one measure, seconds of waiting.

    urgency = head start of the class + time waited + (pressure - 1) * max(0, window - time to the deadline)

A class is worth seconds of head start, so a request of a lower class that has waited that much longer goes first, and nothing
starves. In the last `window` seconds before its deadline a request ages `pressure` times as fast.

A request is *normal* until that window begins and *urgent* from then on (in the window its urgency has another slope). So there
are two heaps, and in each the order is a key that time does not change:

    normal    urgency(t) = t - key                    key = arrival - head start
    urgent    urgency(t) = pressure * t - key         key = arrival - head start + (pressure - 1) * begin of the window

Only the two heads are compared, and both events that may change the order are known beforehand: a normal request becomes urgent
(`_becoming_urgent`), and the urgent head overtakes the normal one.

For example, two requests of the same class without a head start: one arrived at 10 s; the other at 16 s, with a deadline at 50
s. The keys are 10 and, from 40 s on, 16 + 3 * 40 = 136. At 42 s both have waited 32 "seconds": 42 - 10 and 4 * 42 - 136. The
tie goes to the earlier arrival, so the second goes first from 42.000001 s on. All times are whole microseconds.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TypeAlias

from maitred.core.contracts import PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros, from_seconds
from maitred.queueing.base import SCHEDULERS, BaseQueue, PolicyInfo, RequestFacts, earliest

_Key: TypeAlias = tuple[Micros, Micros, RequestId]
"""The key as above, arrival, id."""


@SCHEDULERS.register("slo")
class SloUrgency(QueuePolicy):
    """By head start of the class, time waited and nearness of the deadline.

    `system`, `interactive`, `default` and `bulk` are the head starts of the classes; `window` is the time before a deadline in
    which a request ages `pressure` times as fast. All but `pressure` are in seconds.
    """

    about = PolicyInfo(
        summary="most urgent first: head start of the class + time waited + pressure of the deadline, in seconds",
        complexity="O(log n) per request",
        starves="nothing: what has waited long enough overtakes every class",
        reads=RequestFacts.PRIORITY_CLASS | RequestFacts.DEADLINE,
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
        """Raises ValueError for spans that are negative or longer than 1e6 s, and unless `pressure` is from 1 to
        1000."""
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
        self._normal: IndexedHeap[RequestId, _Key, SequenceState] = IndexedHeap()
        self._urgent: IndexedHeap[RequestId, _Key, SequenceState] = IndexedHeap()
        self._becoming_urgent: list[tuple[Micros, RequestId, SequenceState]] = []
        """A heap of the instants at which normal requests with a deadline become urgent; some of them may wait no more."""
        self._now: Micros = 0

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        request, self._now = seq.request, now
        urgent_from = self._urgent_from(request)
        if urgent_from is not None and urgent_from <= now:
            self._make_urgent(seq, urgent_from)
            return
        self._normal.push(request.id, (self._base_key(request), request.arrival, request.id), seq)
        if urgent_from is not None:
            heappush(self._becoming_urgent, (urgent_from, request.id, seq))

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._normal.remove(request_id) or self._urgent.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._now = now
        while self._becoming_urgent and self._becoming_urgent[0][0] <= now:
            urgent_from, request_id, seq = heappop(self._becoming_urgent)
            if self._normal.remove(request_id) is not None:
                self._make_urgent(seq, urgent_from)

    def peek(self) -> SequenceState | None:
        return self._head_heap().peek()

    def pop(self) -> SequenceState:
        return self._head_heap().pop()

    def next_order_change(self, now: Micros) -> Micros | None:
        # Entries of requests that wait no more are dropped here and not when these leave: a heap finds only its head.
        while self._becoming_urgent and self._becoming_urgent[0][1] not in self._normal:
            heappop(self._becoming_urgent)
        next_urgent = max(self._becoming_urgent[0][0], now + 1) if self._becoming_urgent else None
        return earliest(next_urgent, self._overtaken_at(now))

    def __len__(self) -> int:
        return len(self._normal) + len(self._urgent)

    def _base_key(self, request: Request) -> Micros:
        return request.arrival - self._head_starts[request.priority_class]

    def _urgent_from(self, request: Request) -> Micros | None:
        """Return the instant from which on `request` is urgent, or None if it never is."""
        if request.deadline is None or not self._slope:
            return None
        return max(request.arrival, request.deadline - self._window)

    def _make_urgent(self, seq: SequenceState, urgent_from: Micros) -> None:
        request = seq.request
        key = self._base_key(request) + self._slope * urgent_from
        self._urgent.push(request.id, (key, request.arrival, request.id), seq)

    def _head_heap(self) -> IndexedHeap[RequestId, _Key, SequenceState]:
        """Return the heap with the head that goes first."""
        normal, urgent = self._normal.peek_key(), self._urgent.peek_key()
        if normal is None or urgent is None:
            return self._normal if urgent is None else self._urgent
        return self._urgent if self._urgent_first(urgent, normal, self._now) else self._normal

    def _urgent_first(self, urgent: _Key, normal: _Key, now: Micros) -> bool:
        """Whether the request with the key `urgent` goes before the one with the key `normal` at `now`."""
        lead = self._slope * now - (urgent[0] - normal[0])
        return lead > 0 or (lead == 0 and urgent[1:] < normal[1:])

    def _overtaken_at(self, now: Micros) -> Micros | None:
        """Return when the urgent head will go before the normal one, or None if it does so by now, or one of them is
        missing."""
        normal, urgent = self._normal.peek_key(), self._urgent.peek_key()
        if normal is None or urgent is None or self._urgent_first(urgent, normal, now):
            return None
        level_at = -(-(urgent[0] - normal[0]) // self._slope)  # rounded up: at this instant the lead is at least 0
        return max(now + 1, level_at)
