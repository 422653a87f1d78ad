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
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from typing import TypeAlias

from maitred.core.errors import InvariantError
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.units import Micros
from maitred.programs.program import Program, TenantPrograms

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
        self.serials: Collection[int] = self._in_order.live
        """The serial numbers of all."""
        self._by_age: IndexedHeap[int, AgeOrder, Program] = IndexedHeap()
        """The programs with a request that waits: the highest class first, then the oldest request."""
        self._only_tenant: TenantPrograms | None = None
        """The tenant of all of these, or None once there have been others, until none waits."""
        self._by_age_of: defaultdict[TenantPrograms, IndexedHeap[int, AgeOrder, Program]] = defaultdict(IndexedHeap)
        """The same ones of each tenant that has some; empty while there is only one."""
        self._by_size: IndexedHeap[int, tuple[int, int], Program] = IndexedHeap()
        """All of them by tokens; equal ones in the order of creation."""

    def set_ageing(self, ageing: float | None) -> None:
        """Order all programs by another `ageing`."""
        self._ageing = ageing
        for program in list(self):
            self._put(program)

    def add(self, program: Program) -> None:
        """Add a program, or find its places anew if it is there."""
        if program.serial not in self.serials:
            self._num_paused += 1
            program.pause_number = self._num_paused
        self._put(program)

    def update(self, program: Program) -> None:
        """Find the places of a program anew, by what it is now, if it is there."""
        if program.serial in self.serials:
            self._put(program)

    def _put(self, program: Program) -> None:
        serial = program.serial
        self._in_order.push(serial, self.order(program), program)
        self._by_size.push(serial, (program.tokens, serial), program)
        if program.waiting:
            self._put_by_age(program)
        elif serial in self._by_age.live:
            self._remove_age(program)

    def _put_by_age(self, program: Program) -> None:
        # Usually those that wait are of one tenant, and no heap for each is needed. To sort them by tenants when a second one
        # comes costs O(n), but only once until none waits any more: no more than their own pushes.
        if not self._by_age.live:
            self._only_tenant = program.of_tenant
        elif self._only_tenant is not None and self._only_tenant is not program.of_tenant:
            for order, other in self._by_age:
                self._by_age_of[self._only_tenant].push(other.serial, order, other)
            self._only_tenant = None
        order = _age_order(program)
        self._by_age.push(program.serial, order, program)
        if self._only_tenant is None:
            self._by_age_of[program.of_tenant].push(program.serial, order, program)

    def remove(self, program: Program) -> None:
        """Take a program out, if it is there."""
        if self._in_order.remove(program.serial) is not None:
            self._by_size.remove(program.serial)
            if program.serial in self._by_age.live:
                self._remove_age(program)

    def _remove_age(self, program: Program) -> None:
        self._by_age.remove(program.serial)
        if self._only_tenant is None:
            of_tenant = self._by_age_of[program.of_tenant]
            of_tenant.remove(program.serial)
            if not of_tenant.live:
                del self._by_age_of[program.of_tenant]

    def order(self, program: Program) -> ResumeOrder:
        """Return the place of a program in the order of resumes."""
        root = program if program.parent is None else program.root
        group = IDLE if not program.waiting else NEW if root.num_requests <= 1 else RETURNING
        if self._ageing is None:
            return (-root.priority_class, group, root.tokens, program.pause_number, 0)
        # Small ones first, because many of them fit where one large one does. But all grow older at the same rate, so large
        # ones are not starved, and the order never changes while they wait: no key need be made anew as time passes.
        # A family is as old as the wait of its root, or else as what came last of the root, which forked the children.
        since = root.waiting_since if root.waiting else root.last_active
        return (-root.priority_class, group, since + self._ageing * root.tokens, root.serial, program.serial)

    def first(self, n: int, fits: Callable[[Program], bool]) -> Program | None:
        """Return the first program in order that `fits`, if it is among the first `n`."""
        tried: list[Program] = []
        found = None
        while found is None and len(tried) < n and self.serials:
            tried.append(self._in_order.pop())
            if fits(tried[-1]):
                found = tried[-1]
        for program in tried:
            self._in_order.push(program.serial, self.order(program), program)
        return found

    def oldest(self) -> Program | None:
        """Return the program with the request that has waited longest among those of the highest class, or None."""
        return self._by_age.peek()

    def overdue(self, since: Micros) -> Program | None:
        """Return the program whose turn it is among those of the highest class, if the oldest of them has waited since `since`
        or longer, or None. Of all that have, the turn is that of the oldest one of the tenant that holds the fewest tokens."""
        oldest = self._by_age.peek()
        if oldest is None or oldest.waiting_since > since:
            return None
        if self._only_tenant is not None:
            return oldest
        heads = (heap.peek() for heap in self._by_age_of.values())
        return min(
            (program for program in heads if program is not None and program.waiting_since <= since),
            key=lambda p: (-p.root.priority_class, p.of_tenant.held_tokens, p.waiting_since, p.serial),
        )

    def smallest(self) -> Program | None:
        """Return the program with the fewest tokens, or None."""
        return self._by_size.peek()

    def __iter__(self) -> Iterator[Program]:
        """Return an iterator of all programs in order."""
        return iter([program for _, program in sorted(self._in_order, key=itemgetter(0))])

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
        waiting = [p for p in programs if p.waiting]
        by_tenant = {tenant: {program.serial for _, program in heap} for tenant, heap in self._by_age_of.items()}
        if waiting and self._only_tenant is not None:
            by_tenant[self._only_tenant] = {program.serial for _, program in self._by_age}
        if by_tenant != {p.of_tenant: {q.serial for q in waiting if q.of_tenant is p.of_tenant} for p in waiting}:
            raise InvariantError("the waiting programs of the tenants are other ones")


def _age_order(program: Program) -> AgeOrder:
    """Return the key by which the program whose request has waited longest is found."""
    root = program if program.parent is None else program.root
    return (-root.priority_class, program.waiting_since, program.serial)
