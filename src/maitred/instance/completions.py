"""Completions: after which step each decoding sequence completes. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from maitred.core.sequence import SequenceState

_INDEX_BITS: Final = 32
"""Bits of an admission index. Compiled code needs no big numbers up to step 2^29, and is right beyond it."""
_bisect: Final = bisect_left
"""Compiled code looks up the name of what it imports at each call, and that of a constant never."""


class Completions:
    """The steps after which the decoding sequences complete.

    The key of each is one number, the step above the admission index. Keys are negative, so that the next one is the last of
    the list: numbers are quicker to compare than tuples, and there are never more than a batch has sequences.
    """

    __slots__ = ("_keys", "_sequences", "next_step")

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._sequences: list[SequenceState] = []
        """The sequences in the order of their keys."""
        self.next_step = -1
        """The first step after which a sequence completes; -1: no sequence decodes."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, seq: SequenceState, step: int) -> None:
        """Note that `seq`, which has just begun to decode, completes after `step`."""
        key = -(step << _INDEX_BITS | seq.admission_index)
        place = _bisect(self._keys, key)
        self._keys.insert(place, key)
        self._sequences.insert(place, seq)
        if step < self.next_step or self.next_step < 0:
            self.next_step = step

    def remove(self, seq: SequenceState, step: int) -> None:
        """Forget that `seq` would complete after `step`. Raises KeyError if that was not noted."""
        key, keys = -(step << _INDEX_BITS | seq.admission_index), self._keys
        place = _bisect(keys, key)
        if place == len(keys) or keys[place] != key:
            raise KeyError(seq.request_id)
        del keys[place], self._sequences[place]
        self.next_step = -keys[-1] >> _INDEX_BITS if keys else -1

    def postpone(self, seq: SequenceState, step: int) -> None:
        """Note that `seq`, which would complete after `step`, completes a step later."""
        self.remove(seq, step)
        self.add(seq, step + 1)

    def pop_complete(self, step: int) -> list[SequenceState]:
        """Remove and return the sequences that complete after `step`, in the order of their admission."""
        keys, complete = self._keys, list[SequenceState]()
        while self.next_step == step:
            keys.pop()
            complete.append(self._sequences.pop())
            self.next_step = -keys[-1] >> _INDEX_BITS if keys else -1
        return complete
