"""The paused programs of one model, in the order in which they are resumed.

    class, highest first; then
    0  a request waits, and it is not the first one of the program: its KV may still be cached
    1  a request waits, and it is the first one
    2  no request waits
    then, within a group, by age and size

Small programs go first, because many of them fit where one large one does; but every waiting program grows older at the
same rate. So the order within a group is that of one fixed number,

    waiting_since + ageing_secs_per_1k_tokens * tokens / 1000

and a program of 8,000 tokens is passed by one of 1,000 only if that comes less than 7 s after it (with 1 s per 1,000 tokens).
A child takes the place of its family: the age and the size of its root. The flavour `thunderagent` orders by tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from maitred.core.lazy_heap import IndexedHeap
from maitred.core.units import Micros
from maitred.programs.program import Program

ResumeOrder: TypeAlias = tuple[int, int, float, int, int]
RETURNING, NEW, IDLE = 0, 1, 2


class WaitingPrograms:
    """Paused programs. `ageing` is in µs per token; None: age does not count."""

    def __init__(self, ageing: float | None) -> None:
        self._ageing = ageing
        self._in_order: IndexedHeap[int, ResumeOrder, Program] = IndexedHeap()
        self._by_age: IndexedHeap[int, Micros, Program] = IndexedHeap()
        """Those with a request that waits."""
        self._by_size: IndexedHeap[int, int, Program] = IndexedHeap()

    def add(self, program: Program) -> None:
        """Add a program, or find its place anew after a change."""
        self._in_order.push(program.serial, self._order(program), program)
        self._by_size.push(program.serial, program.tokens, program)
        if program.waiting:
            self._by_age.push(program.serial, program.waiting_since, program)
        else:
            self._by_age.remove(program.serial)

    def remove(self, program: Program) -> None:
        """Take a program out."""
        self._in_order.remove(program.serial)
        self._by_size.remove(program.serial)
        self._by_age.remove(program.serial)

    def _order(self, program: Program) -> ResumeOrder:
        root = program.root
        if self._ageing is None:
            place: float = root.tokens
        else:
            since = program.waiting_since if root is program else root.created_at
            place = since + self._ageing * root.tokens
        return (-root.priority_class.value, group_of(program), place, root.serial, program.serial)

    def pop(self) -> Program:
        """Take the program to be resumed first out of the order, to look at the next. Give it back with `add`. Raises
        IndexError if there is none."""
        return self._in_order.pop()

    def oldest(self) -> Program | None:
        """Return the program with the request that has waited longest, or None."""
        return self._by_age.peek()

    def smallest(self) -> Program | None:
        """Return the program with the fewest tokens, or None."""
        return self._by_size.peek()

    def __iter__(self) -> Iterator[Program]:
        """Return an iterator of all programs in order."""
        return iter([program for _, program in sorted(self._in_order, key=lambda pair: pair[0])])

    def __contains__(self, program: Program) -> bool:
        return program.serial in self._in_order

    def __len__(self) -> int:
        return len(self._in_order)


def group_of(program: Program) -> int:
    """Return the group of the order of resumes."""
    if not program.waiting:
        return IDLE
    return NEW if program.root.step_count <= 1 else RETURNING
