"""Deadlines: the instants at which the sequences of an engine are of no use any more. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class Deadlines:
    """A heap of deadlines. Those of sequences that have left are dropped when they come up."""

    __slots__ = ("_sequences", "heap")

    def __init__(self, sequences: Mapping[RequestId, SequenceState]) -> None:
        """`sequences` are those of the engine, which come and go."""
        self._sequences = sequences
        self.heap: list[tuple[Micros, int, SequenceState]] = []
        """Instant, arrival index, sequence. While it is empty there is no deadline, and `next` need not be asked."""

    def add(self, due: Micros, seq: SequenceState) -> None:
        """Note that `seq` is of no use from `due` on."""
        heappush(self.heap, (due, seq.arrival_index, seq))

    def next(self) -> Micros | None:
        """Return the first deadline of a sequence that is still here, or None."""
        heap = self.heap
        while heap:
            due, _, seq = heap[0]
            if self._sequences.get(seq.request_id) is seq:
                return due
            heappop(heap)
        return None

    def pop(self) -> SequenceState:
        """Remove the deadline that `next` has returned, and return its sequence."""
        return heappop(self.heap)[2]
