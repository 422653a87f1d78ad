"""CompletionHeap: after which step each decoding sequence completes. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from heapq import heappush

from maitred.core.lazy_heap import LazyHeap
from maitred.core.sequence import SequenceState


class CompletionHeap(LazyHeap[tuple[int, int, int, SequenceState]]):
    """The steps after which the decoding sequences complete, unless they are preempted or withdrawn.

    Entries: step, admission index, `decode_origin_step`, sequence. A sequence that decodes anew was admitted anew, or has
    another origin step.
    """

    __slots__ = ()

    def _is_live(self, entry: tuple[int, int, int, SequenceState]) -> bool:
        seq = entry[3]
        return seq.is_decoding and seq.decode_origin_step == entry[2] and seq.admission_index == entry[1]

    def add(self, seq: SequenceState, step: int) -> None:
        """Note that `seq`, which has just begun to decode, completes after `step`."""
        heappush(self._heap, (step, seq.admission_index, seq.decode_origin_step, seq))

    def postpone(self, seq: SequenceState, step: int) -> None:
        """Note that `seq` completes after `step` instead: its origin step is about to be one later."""
        heappush(self._heap, (step, seq.admission_index, seq.decode_origin_step + 1, seq))
        self._num_stale += 1  # not `mark_stale`: the entry is live until the origin step changes

    def first_step(self) -> int:
        """Return the step after which the first sequence completes; -1 if none decodes."""
        if self._num_stale:
            self._drop_stale()
        heap = self._heap
        return heap[0][0] if heap else -1
