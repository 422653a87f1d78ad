"""The steps after which sequences complete: an entry counts only for the admission for which it was made."""

from __future__ import annotations

from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.instance.completions import Completions


def test_a_sequence_that_decodes_anew_from_the_same_step_has_one_entry() -> None:
    """A sequence gives way at step 8 with 3 tokens, and its prompt is computed again at step 9, a step of prefill alone: its
    origin is step 5, as before."""
    completions, seq = Completions(), SequenceState(Request(id=0, arrival=0, prompt_tokens=4), 0, 4)
    for admission in (0, 1):
        seq.admission_index, seq.is_decoding, seq.decode_origin_step = admission, True, 5
        completions.add(seq, 15)
        if not admission:
            seq.is_decoding = False
            completions.remove(seq, 15)
    assert (len(completions), completions.next_step) == (1, 15)
    assert (completions.pop_complete(14), completions.next_step) == ([], 15)
    assert (completions.pop_complete(15), completions.next_step) == ([seq], -1)


def test_those_that_complete_together_do_so_in_the_order_of_admission() -> None:
    completions = Completions()
    seqs = [SequenceState(Request(id=index, arrival=0, prompt_tokens=4), index, 4) for index in range(3)]
    for index, step in ((2, 7), (1, 9), (0, 7)):
        seqs[index].admission_index, seqs[index].is_decoding = index, True
        completions.add(seqs[index], step)
    assert (completions.next_step, completions.pop_complete(7), completions.next_step) == (7, [seqs[0], seqs[2]], 9)
