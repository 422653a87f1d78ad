"""What policies around other policies have in common: all passes through, except what they do themselves."""

from __future__ import annotations

from maitred.contracts import StepView, WaitQueue
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class Around(WaitQueue):
    """A wait queue that is another one, seen from outside."""

    def __init__(self, inside: WaitQueue) -> None:
        self._inside = inside

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._inside.add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._inside.remove(request_id)

    def begin(self, step: StepView, now: Micros) -> None:
        self._inside.begin(step, now)

    def peek(self) -> Seq | None:
        return self._inside.peek()

    def pop(self) -> Seq:
        return self._inside.pop()

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        self._inside.served(seq, prefill, decode, now)

    def finished(self, seq: Seq, now: Micros) -> None:
        self._inside.finished(seq, now)

    def left(self, seq: Seq, now: Micros) -> None:
        self._inside.left(seq, now)

    def stable_until(self, now: Micros) -> Micros | None:
        return self._inside.stable_until(now)

    def __len__(self) -> int:
        return len(self._inside)


def earliest(*instants: Micros | None) -> Micros | None:
    """The first of those that will come."""
    return min((instant for instant in instants if instant is not None), default=None)
