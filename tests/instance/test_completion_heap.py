"""The steps after which sequences complete: an entry counts only for the admission for which it was made."""

from __future__ import annotations

from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.instance.completion_heap import CompletionHeap


def test_a_sequence_that_decodes_anew_from_the_same_step_has_one_entry() -> None:
    """A sequence gives way at step 8 with 3 tokens, and its prompt is computed again at step 9, a step of prefill alone: its
    origin is step 5, as before."""
    heap, seq = CompletionHeap(), SequenceState(Request(id=0, arrival=0, prompt_tokens=4), 0, 4)
    for admission in (0, 1):
        seq.admission_index, seq.is_decoding, seq.decode_origin_step = admission, True, 5
        heap.add(seq, 15)
        if not admission:
            seq.is_decoding = False
            heap.mark_stale()
    assert (len(heap), heap.next_step) == (1, 15)
    assert (heap.pop_complete(14), heap.next_step) == ([], 15)
    assert (heap.pop_complete(15), heap.next_step) == ([seq], -1)


def test_those_that_complete_together_do_so_in_the_order_of_admission() -> None:
    heap = CompletionHeap()
    seqs = [SequenceState(Request(id=index, arrival=0, prompt_tokens=4), index, 4) for index in range(3)]
    for index, step in ((2, 7), (1, 9), (0, 7)):
        seqs[index].admission_index, seqs[index].is_decoding = index, True
        heap.add(seqs[index], step)
    assert (heap.next_step, heap.pop_complete(7), heap.next_step) == (7, [seqs[0], seqs[2]], 9)
