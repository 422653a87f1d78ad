"""Work in steps: a generator that does a part of it, a millisecond or two, before each `yield`, and returns what comes of all.

Between two steps an event loop may run, so that nobody waits for the whole. What the work looks at may change meanwhile: the
docstring of a function that returns steps says what is of one instant.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def run_at_once(steps: Steps[T]) -> T:
    """Do all steps, with nothing between, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items that are there at the first step, at most `size` at a time."""
    found = list(items)
    for begin in range(0, len(found), size):
        yield found[begin : begin + size]
