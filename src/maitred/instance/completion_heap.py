"""Who ends after which step: a heap that forgets late.

A sequence that decodes ends after a step known beforehand, unless it is preempted or withdrawn. Its entry is not searched for
then: it is stale, is counted, and is dropped when it comes up. While nothing is stale no entry is looked at twice.
"""

from __future__ import annotations

from heapq import heappop, heappush

from maitred.core.sequence import SequenceState


class CompletionHeap:
    """Entries are (step, place in the batch, origin, sequence). A sequence that decodes anew has another `origin`, and another
    entry."""

    __slots__ = ("_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, SequenceState]] = []
        self._stale = 0

    def add(self, seq: SequenceState, step: int) -> None:
        """`seq`, which has just begun to decode, ends after `step`."""
        heappush(self._heap, (step, seq.admission_index, seq.decode_origin_step, seq))

    def invalidate(self) -> None:
        """A sequence stops decoding before its end."""
        self._stale += 1

    def first_step(self) -> int:
        """The step after which the first sequence ends; -1: none decodes."""
        heap = self._heap
        while self._stale and heap:
            _, _, origin, seq = heap[0]
            if seq.is_decoding and seq.decode_origin_step == origin:
                break
            heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else -1

    def pop(self) -> SequenceState:
        """Take out the one that `first` is about."""
        return heappop(self._heap)[3]
