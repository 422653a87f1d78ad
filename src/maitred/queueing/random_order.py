"""random: whom the dice choose.

Each step has dice of its own, made from the seed and the step's number. So whom they choose depends on who waits at that
step, and not on how many steps were skipped before or how often somebody has looked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, StepView, WaitQueue
from maitred.queueing.policy import SCHEDULERS, PolicyInfo, Queue
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


@SCHEDULERS.register("random")
class RandomOrder(QueuePolicy):
    """Any that waits, with equal chances, anew at each step (SGLang `random`, with a seed)."""

    about = PolicyInfo(
        line="drawn anew for each step, the same for the same seed",
        complexity="O(log n) per request",
        starves="nobody for ever, but waits have a long tail",
    )

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _Urn(rng.getrandbits(64))


class _Urn(Queue):
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = 0
        self._dice: Random | None = None
        self._ids: list[RequestId] = []
        """In order, so that who is drawn does not depend on how they came and went."""
        self._seqs: dict[RequestId, Seq] = {}
        self._drawn: Seq | None = None

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        insort(self._ids, seq.request.id)
        self._seqs[seq.request.id] = seq

    def remove(self, request_id: RequestId) -> Seq | None:
        seq = self._seqs.pop(request_id, None)
        if seq is not None:
            del self._ids[bisect_left(self._ids, request_id)]
            if seq is self._drawn:
                self._drawn = None
        return seq

    def begin(self, step: StepView, now: Micros) -> None:
        self._step, self._dice, self._drawn = step.number, None, None

    def peek(self) -> Seq | None:
        if self._drawn is None and self._ids:
            self._drawn = self._seqs[self._draw() if len(self._ids) > 1 else self._ids[0]]
        return self._drawn

    def _draw(self) -> RequestId:
        if self._dice is None:  # made only where they are thrown, for that takes several µs
            self._dice = Random(f"{self._seed}/{self._step}")
        return self._dice.choice(self._ids)

    def pop(self) -> Seq:
        seq = self.peek()
        if seq is None:
            raise IndexError("pop from an empty wait queue")
        self.remove(seq.request.id)
        return seq

    def stable_until(self, now: Micros) -> Micros | None:
        return now + 1 if len(self._ids) > 1 else None

    def __len__(self) -> int:
        return len(self._ids)
