"""Who ends after which step: a heap that forgets late.

A sequence that decodes ends after a step known beforehand, unless it is preempted or withdrawn. Its entry is not searched for
then: it is stale, is counted, and is dropped when it comes up. While nothing is stale no entry is looked at twice.
"""

from __future__ import annotations

from heapq import heappop, heappush

from maitred.seq import Seq


class Ends:
    """Entries are (step, place in the batch, origin, sequence). A sequence that decodes anew has another `origin`, and another
    entry."""

    __slots__ = ("_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Seq]] = []
        self._stale = 0

    def add(self, seq: Seq, step: int) -> None:
        """`seq`, which has just begun to decode, ends after `step`."""
        heappush(self._heap, (step, seq.entered, seq.origin, seq))

    def forsake(self) -> None:
        """A sequence stops decoding before its end."""
        self._stale += 1

    def first(self) -> int:
        """The step after which the first sequence ends; -1: none decodes."""
        heap = self._heap
        while self._stale and heap:
            _, _, origin, seq = heap[0]
            if seq.decoding and seq.origin == origin:
                break
            heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else -1

    def pop(self) -> Seq:
        """Take out the one that `first` is about."""
        return heappop(self._heap)[3]
