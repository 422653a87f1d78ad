"""CompletionHeap: after which step each decoding sequence completes. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from heapq import heappop, heappush

from maitred.core.lazy_heap import LazyHeap
from maitred.core.sequence import SequenceState


class CompletionHeap(LazyHeap[tuple[int, int, int, SequenceState]]):
    """The steps after which the decoding sequences complete, unless they are preempted or withdrawn.

    Entries: step, admission index, `decode_origin_step`, sequence. A sequence that decodes anew was admitted anew, or has
    another origin step.
    """

    __slots__ = ("next_step",)

    def __init__(self) -> None:
        super().__init__()
        self.next_step = -1
        """No sequence completes before this step; -1: perhaps no sequence decodes."""

    def _is_live(self, entry: tuple[int, int, int, SequenceState]) -> bool:
        seq = entry[3]
        return seq.is_decoding and seq.decode_origin_step == entry[2] and seq.admission_index == entry[1]

    def add(self, seq: SequenceState, step: int) -> None:
        """Note that `seq`, which has just begun to decode, completes after `step`."""
        heappush(self._heap, (step, seq.admission_index, seq.decode_origin_step, seq))
        if step < self.next_step or self.next_step < 0:
            self.next_step = step

    def postpone(self, seq: SequenceState, step: int) -> None:
        """Note that `seq` completes after `step` instead: its origin step is about to be one later."""
        heappush(self._heap, (step, seq.admission_index, seq.decode_origin_step + 1, seq))
        self._num_stale += 1  # not `mark_stale`: the entry is live until the origin step changes

    def pop_complete(self, step: int) -> list[SequenceState]:
        """Remove and return the sequences that complete after `step`, in the order of their admission, and find `next_step`."""
        heap = self._heap
        complete: list[SequenceState] = []
        while True:
            if self._num_stale:
                self._drop_stale()
            self.next_step = first = heap[0][0] if heap else -1
            if first != step:
                return complete
            complete.append(heappop(heap)[3])
