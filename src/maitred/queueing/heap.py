"""A heap of sequences whose keys may be taken back.

An entry that is removed or given another key stays in the heap until it comes up, or until such entries are the larger half:
then the heap is made anew from the rest. So each operation costs O(log n), on average over many.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from maitred.core.contracts import SortKey
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState

_Entry: TypeAlias = tuple[SortKey, int, SequenceState]


class SeqHeap:
    """Sequences by a key, the smallest first; at equal keys in the order in which they came."""

    __slots__ = ("_entries", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._entries: dict[RequestId, _Entry] = {}
        self._pushes = 0

    def push(self, key: SortKey, seq: SequenceState) -> None:
        """Put `seq` in, or give it another key."""
        entry = (key, self._pushes, seq)
        self._pushes += 1
        self._entries[seq.request.id] = entry
        heappush(self._heap, entry)
        self._clean()

    def remove(self, request_id: RequestId) -> SequenceState | None:
        entry = self._entries.pop(request_id, None)
        self._clean()
        return None if entry is None else entry[2]

    def first(self) -> SequenceState | None:
        entry = self._first()
        return None if entry is None else entry[2]

    def first_key(self) -> SortKey | None:
        entry = self._first()
        return None if entry is None else entry[0]

    def pop(self) -> SequenceState:
        """Raises IndexError when empty."""
        if self._first() is None:
            raise IndexError("pop from an empty wait queue")
        seq = heappop(self._heap)[2]
        del self._entries[seq.request.id]
        return seq

    def _first(self) -> _Entry | None:
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            valid = entries.get(entry[2].request.id)
            if valid is not None and valid[1] == entry[1]:  # not `is`: compiled, a tuple has no identity
                return entry
            heappop(heap)
        return None

    def _clean(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def __iter__(self) -> Iterator[tuple[SortKey, SequenceState]]:
        """Each with its key, in no particular order."""
        return ((key, seq) for key, _, seq in self._entries.values())

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)
