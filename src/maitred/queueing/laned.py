"""What queues over lanes have in common."""

from __future__ import annotations

from maitred.queueing.lanes import Lanes
from maitred.queueing.policy import Queue
from maitred.seq import Seq
from maitred.units import Micros


class LanedQueue(Queue):
    """A queue over lanes passes what it is told of a sequence to its lane."""

    lanes: Lanes[str] | Lanes[float]

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        if (lane := self.lanes.of(seq)) is not None:
            lane.served(seq, prefill, decode, now)

    def finished(self, seq: Seq, now: Micros) -> None:
        if (lane := self.lanes.of(seq)) is not None:
            lane.finished(seq, now)

    def left(self, seq: Seq, now: Micros) -> None:
        self.lanes.left(seq, now)

    def __len__(self) -> int:
        return len(self.lanes)
