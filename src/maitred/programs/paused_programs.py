"""The paused programs of one model, in the order in which they are resumed.

    class, highest first; then
    0  a request waits, and it is not the first one of the program: its KV may still be cached
    1  a request waits, and it is the first one
    2  no request waits
    then, within a group, by age and size

Within a group the order is that of one fixed number,

    waiting_since + ageing_secs_per_1k_tokens * tokens / 1000

Example, with 1 s per 1,000 tokens: a program of 8,000 tokens that comes at 0 s has the place 8 s. One of 1,000 passes it if it
comes before 7 s.

A child takes the place of its family: class, group, age and size of its root, and only whether a request waits is its own. The
flavour `thunderagent` orders by tokens alone, equal programs by when they were paused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TypeAlias

from maitred.core.errors import InvariantError
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.units import Micros
from maitred.programs.program import Program

ResumeOrder: TypeAlias = tuple[int, int, float, int, int]
AgeOrder: TypeAlias = tuple[int, Micros, int]
RETURNING, NEW, IDLE = 0, 1, 2


class PausedPrograms:
    """The paused programs of one model: those with a request that waits, and those without one."""

    def __init__(self, ageing: float | None) -> None:
        """`ageing` is in µs per token; None: age does not count."""
        self._ageing = ageing
        self._num_paused = 0
        self._in_order: IndexedHeap[int, ResumeOrder, Program] = IndexedHeap()
        self._by_age: IndexedHeap[int, AgeOrder, Program] = IndexedHeap()
        """The programs with a request that waits: the highest class first, then the oldest request."""
        self._by_age_of: defaultdict[str, IndexedHeap[int, AgeOrder, Program]] = defaultdict(IndexedHeap)
        """The same ones of each tenant that has some."""
        self._by_size: IndexedHeap[int, tuple[int, int], Program] = IndexedHeap()
        """All of them by tokens; equal ones in the order of creation."""

    def set_ageing(self, ageing: float | None) -> None:
        """Order all programs by another `ageing`."""
        self._ageing = ageing
        for program in list(self):
            self._put(program)

    def add(self, program: Program) -> None:
        """Add a program, if it is not there."""
        if program not in self:
            self._num_paused += 1
            program.pause_number = self._num_paused
            self._put(program)

    def update(self, program: Program) -> None:
        """Find the places of a program anew, by what it is now, if it is there."""
        if program in self:
            self._put(program)

    def _put(self, program: Program) -> None:
        self._in_order.push(program.serial, self.order(program), program)
        self._by_size.push(program.serial, (program.tokens, program.serial), program)
        if program.waiting:
            order = _age_order(program)
            self._by_age.push(program.serial, order, program)
            self._by_age_of[program.key.tenant].push(program.serial, order, program)
        else:
            self._remove_age(program)

    def remove(self, program: Program) -> None:
        """Take a program out."""
        for heap in (self._in_order, self._by_size):
            heap.remove(program.serial)
        self._remove_age(program)

    def _remove_age(self, program: Program) -> None:
        if self._by_age.remove(program.serial) is not None:
            of_tenant = self._by_age_of[program.key.tenant]
            of_tenant.remove(program.serial)
            if not len(of_tenant):
                del self._by_age_of[program.key.tenant]

    def order(self, program: Program) -> ResumeOrder:
        """Return the place of a program in the order of resumes."""
        root = program.root
        if self._ageing is None:
            return (-root.priority_class, group_of(program), root.tokens, program.pause_number, 0)
        # Small ones first, because many of them fit where one large one does. But all grow older at the same rate, so large
        # ones are not starved, and the order never changes while they wait: no key need be made anew as time passes.
        place = root.family_since + self._ageing * root.tokens
        return (-root.priority_class, group_of(program), place, root.serial, program.serial)

    def first(self, n: int) -> list[Program]:
        """Return the first `n` programs in order, or all if there are fewer."""
        found = [self._in_order.pop() for _ in range(min(n, len(self._in_order)))]
        for program in found:
            self._in_order.push(program.serial, self.order(program), program)
        return found

    def oldest(self) -> Program | None:
        """Return the program with the request that has waited longest among those of the highest class, or None."""
        return self._by_age.peek()

    def overdue(self, since: Micros, held: Mapping[str, float]) -> Program | None:
        """Return the program whose turn it is among those of the highest class, if the oldest of them has waited since `since`
        or longer, or None. Of all that have, the turn is that of the oldest one of the tenant that holds the fewest tokens."""
        oldest = self._by_age.peek()
        if oldest is None or oldest.waiting_since > since:
            return None
        if len(self._by_age_of) == 1:
            return oldest
        heads = (heap.peek() for heap in self._by_age_of.values())
        return min(
            (program for program in heads if program is not None and program.waiting_since <= since),
            key=lambda p: (-p.root.priority_class, held.get(p.key.tenant, 0.0), p.waiting_since, p.serial),
        )

    def smallest(self) -> Program | None:
        """Return the program with the fewest tokens, or None."""
        return self._by_size.peek()

    def __iter__(self) -> Iterator[Program]:
        """Return an iterator of all programs in order."""
        return iter([program for _, program in sorted(self._in_order, key=itemgetter(0))])

    def __contains__(self, program: Program) -> bool:
        return program.serial in self._in_order

    def __len__(self) -> int:
        return len(self._in_order)

    def check(self) -> None:
        """Raise InvariantError if a program does not have the place that is its own."""
        for order, program in self._in_order:
            if order != self.order(program):
                raise InvariantError(f"{program.key} waits at a place that is not its own")
        programs = [program for _, program in self._in_order]
        if self.smallest() is not min(programs, key=lambda p: (p.tokens, p.serial), default=None):
            raise InvariantError("the smallest waiting program is another one")
        if self.oldest() is not min((p for p in programs if p.waiting), key=_age_order, default=None):
            raise InvariantError("the program that has waited longest is another one")
        by_tenant = {tenant: {program.serial for _, program in heap} for tenant, heap in self._by_age_of.items()}
        waiting = [p for p in programs if p.waiting]
        if by_tenant != {p.key.tenant: {q.serial for q in waiting if q.key.tenant == p.key.tenant} for p in waiting}:
            raise InvariantError("the waiting programs of the tenants are other ones")


def _age_order(program: Program) -> AgeOrder:
    """Return the key by which the program whose request has waited longest is found."""
    return (-program.root.priority_class, program.waiting_since, program.serial)


def group_of(program: Program) -> int:
    """Return the group of the order of resumes."""
    if not program.waiting:
        return IDLE
    return NEW if program.root.num_requests <= 1 else RETURNING
