"""Heaps with lazy deletion: what comes out is the smallest live entry, and stale ones do not pile up."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred import is_compiled
from maitred.core.lazy_heap import IndexedHeap, LazyHeap


def test_equal_keys_leave_in_the_order_of_their_pushes() -> None:
    heap: IndexedHeap[str, int, str] = IndexedHeap()
    for handle, key in [("a", 5), ("b", 5), ("c", 1)]:
        heap.push(handle, key, handle.upper())
    heap.push("a", 5, "A")  # again: behind b now
    assert [heap.pop() for _ in range(3)] == ["C", "B", "A"]


def test_a_value_that_gets_another_key_leaves_once() -> None:
    heap: IndexedHeap[str, int, str] = IndexedHeap()
    heap.push("a", 5, "A")
    heap.push("b", 7, "B")
    heap.push("a", 9, "A")
    assert (heap.peek(), heap.peek_key(), len(heap)) == ("B", 7, 2)
    assert heap.remove("a") == "A"
    assert heap.remove("a") is None
    assert "a" not in heap
    assert list(heap) == [(7, "B")]
    assert heap.pop() == "B"
    assert (heap.peek(), heap.peek_key(), len(heap)) == (None, None, 0)
    with pytest.raises(IndexError, match="pop from an empty heap"):
        heap.pop()


@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["push", "push", "push", "remove", "pop"]), st.integers(0, 30), st.integers(0, 5))
    )
)
def test_an_indexed_heap_is_a_sorted_list_of_what_is_in_it(operations: list[tuple[str, int, int]]) -> None:
    heap: IndexedHeap[int, int, str] = IndexedHeap()
    model: dict[int, tuple[int, int]] = {}
    for number, (operation, handle, key) in enumerate(operations):
        if operation == "push":
            heap.push(handle, key, f"value {handle}")
            model[handle] = (key, number)
        elif operation == "remove":
            assert heap.remove(handle) == (f"value {handle}" if handle in model else None)
            model.pop(handle, None)
        elif model:
            first = min(model, key=lambda each: model[each])
            assert heap.pop() == f"value {first}"
            del model[first]
        smallest = min(model, key=lambda each: model[each], default=None)
        assert heap.peek() == (None if smallest is None else f"value {smallest}")
        assert heap.peek_key() == (None if smallest is None else model[smallest][0])
        assert len(heap) == len(model)
        assert all(handle in heap for handle in model)


class Numbers(LazyHeap[tuple[int, int]]):
    """Numbers that are live as long as they are in a set."""

    __slots__ = ("live",)

    def __init__(self) -> None:
        super().__init__()
        self.live: set[int] = set()

    def _is_live(self, entry: tuple[int, int]) -> bool:
        return entry[1] in self.live

    def add(self, key: int, number: int) -> None:
        self.live.add(number)
        self.push_entry((key, number))

    def discard(self, number: int) -> None:
        self.live.remove(number)
        self.mark_stale()


@pytest.mark.skipif(is_compiled(), reason="an interpreted class cannot inherit from a compiled one")
def test_a_heap_whose_values_know_their_entries_drops_the_others() -> None:
    random, heap, keys = Random(1), Numbers(), dict[int, int]()
    for number in range(2_000):
        keys[number] = random.randrange(100)
        heap.add(keys[number], number)
        if len(keys) > 50:
            gone = random.choice(list(keys))
            del keys[gone]
            heap.discard(gone)
        if number % 3 == 0:
            first = heap.pop_entry()
            assert first == min((key, each) for each, key in keys.items())
            del keys[first[1]]
            heap.live.remove(first[1])
        assert len(heap) == len(keys)
        assert len(heap._heap) <= 2 * len(keys) + 20, "stale entries are dropped"
    while keys:
        del keys[heap.pop_entry()[1]]
    assert len(heap) == 0
    with pytest.raises(IndexError):
        heap.pop_entry()
