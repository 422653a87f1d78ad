"""Heaps with lazy deletion: a removed entry stays in the heap until it reaches the top.

Removing an entry from the middle of a binary heap would need its position, which changes with every push and pop. So removal
only declares an entry *stale*. A stale entry is dropped when it comes up as the first one, or when more than half of the
entries are stale: then the heap is rebuilt from the live ones. An operation costs O(log n), amortised over many. While no entry
is stale, which is the usual case, no entry is checked: the first one is the head of a list.

    LazyHeap       a subclass says which entries are live, from what its values know themselves; no index is kept
    IndexedHeap    values are found by a handle (a request id, say), and can be removed or given another key by it

For example, an `IndexedHeap` after `push("a", 5, A)`, `push("b", 7, B)` and `push("a", 9, A)`:

    heap    (5, 1, "a", A)   (7, 2, "b", B)   (9, 3, "a", A)
    live     "a": serial 3    "b": serial 2                      so the first entry is stale, and `peek` returns B

Entries are tuples that begin with what they are ordered by, and no two of one heap may compare equal: `IndexedHeap` puts the
serial number of the push behind the key, so that equal keys leave in the order in which they came.

This module is compiled with mypyc where a build asks for it (tools/compile.py), so it holds plain classes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

_SPARE = 16
"""Stale entries above the number of live ones that are kept, so that small heaps are not rebuilt all the time."""

E = TypeVar("E", bound=tuple[Any, ...])
H = TypeVar("H")
K = TypeVar("K")
V = TypeVar("V")


class LazyHeap(Generic[E]):
    """Entries, the smallest first. A subclass defines `_is_live`, and calls `mark_stale` for each entry that stops being
    live."""

    __slots__ = ("_heap", "_num_stale")

    def __init__(self) -> None:
        self._heap: list[E] = []
        self._num_stale = 0

    def _is_live(self, entry: E) -> bool:
        """Return whether `entry` still counts. Called only while some entry is stale."""
        raise NotImplementedError

    def push_entry(self, entry: E) -> None:
        """Add a live entry."""
        heappush(self._heap, entry)

    def mark_stale(self) -> None:
        """Count one entry more for which `_is_live` has just become false. Call it after the change, never before."""
        self._num_stale += 1
        # A rebuild costs O(n) and drops more than n / 2 entries, so it costs O(1) for each entry that became stale.
        if 2 * self._num_stale > len(self._heap) + _SPARE:
            self._rebuild()

    def pop_entry(self) -> E:
        """Remove and return the smallest live entry. Raises IndexError if there is none."""
        if self._num_stale:
            self._drop_stale()
        return heappop(self._heap)

    def _drop_stale(self) -> None:
        """Drop stale entries until the first one is live."""
        heap = self._heap
        while heap and not self._is_live(heap[0]):
            heappop(heap)
            self._num_stale -= 1
            # Asking for one entry more would cost a look-up, and its answer is known.
            if not self._num_stale:
                return

    def _rebuild(self) -> None:
        self._heap[:] = [entry for entry in self._heap if self._is_live(entry)]
        heapify(self._heap)
        self._num_stale = 0

    def __len__(self) -> int:
        """Return the number of live entries."""
        return len(self._heap) - self._num_stale


class IndexedHeap(LazyHeap[tuple[Any, ...]], Generic[H, K, V]):
    """Values by a key, the smallest first, each found again by its handle. Equal keys leave in the order of their pushes."""

    __slots__ = ("_num_pushes", "live")

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[H, tuple[Any, ...]] = {}
        """The live entry of each handle: (key, serial number of the push, handle, value). Others only read it: whether it is
        empty, or has a handle, is told without a call in Python."""
        self._num_pushes = 0

    def _is_live(self, entry: tuple[Any, ...]) -> bool:
        live = self.live.get(entry[2])
        return live is not None and bool(live[1] == entry[1])  # not `is`: in compiled code a tuple has no identity

    def _rebuild(self) -> None:
        self._heap[:] = self.live.values()
        heapify(self._heap)
        self._num_stale = 0

    def push(self, handle: H, key: K, value: V) -> None:
        """Add `value`, or give the value of this handle another key."""
        self._num_pushes += 1
        entry = (key, self._num_pushes, handle, value)
        num_live = len(self.live)
        self.live[handle] = entry
        heappush(self._heap, entry)
        if len(self.live) == num_live:  # the handle had another entry, which has just become stale
            self.mark_stale()

    def remove(self, handle: H) -> V | None:
        """Remove and return the value of this handle, or return None if there is none."""
        entry = self.live.pop(handle, None)
        if entry is None:
            return None
        self.mark_stale()
        value: V = entry[3]
        return value

    def peek(self) -> V | None:
        """Return the value with the smallest key, or None if the heap is empty."""
        if self._num_stale:
            self._drop_stale()
        heap = self._heap
        return heap[0][3] if heap else None

    def peek_key(self) -> K | None:
        """Return the smallest key, or None if the heap is empty."""
        if self._num_stale:
            self._drop_stale()
        heap = self._heap
        return heap[0][0] if heap else None

    def pop(self) -> V:
        """Remove and return the value with the smallest key. Raises IndexError if the heap is empty."""
        if self._num_stale:
            self._drop_stale()
        if not self._heap:
            raise IndexError("pop from an empty heap")
        # The entry leaves the heap and the index together, so nothing becomes stale.
        entry = heappop(self._heap)
        del self.live[entry[2]]
        value: V = entry[3]
        return value

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Return an iterator of the keys with their values, in no particular order."""
        return ((entry[0], entry[3]) for entry in self.live.values())

    def __contains__(self, handle: object) -> bool:
        return handle in self.live

    def __len__(self) -> int:
        return len(self.live)
