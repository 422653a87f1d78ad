"""All programs that are known: found by key, by serial number and by request; those that are idle, by when they are forgotten.

A tenant's programs are bounded: one more makes room by forgetting the one that is idle for longest. This table keeps no program
that is lost elsewhere and forgets none by itself; the core does, because a program that goes frees memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.programs.program import Program, ProgramKey, TenantPrograms

MAX_GENERATIONS: Final = 16
"""Ancestors that a program may have; a child of a program with as many begins a family of its own. Finding the root of a family
takes as many steps."""
MAX_FAMILY: Final = 256
"""Programs of one family; a child of a larger one begins a family of its own. With each request of the root the places of all
of them are found anew, while all other requests wait."""


class ProgramTable:
    """The programs of one core."""

    def __init__(self, *, has_one_context: bool = False) -> None:
        """`has_one_context`: `ProgramRules.knows_one_context`."""
        self._has_one_context = has_one_context
        self.by_request: dict[RequestId, Program] = {}
        """The programs of requests that wait or are under way."""
        self.characters: dict[RequestId, int] = {}
        """Characters of the body of each request with estimated tokens."""
        self._num_created = 0
        self._by_key: dict[ProgramKey, Program] = {}
        """All programs but those of requests without a program id."""
        self.by_serial: dict[int, Program] = {}
        self.by_expiry: IndexedHeap[int, Micros, Program] = IndexedHeap()
        """Idle programs by when they are to be forgotten."""
        self.tenants: dict[str, TenantPrograms] = {}
        """The tenants that have programs."""
        self._idle_of: dict[str, IndexedHeap[int, Micros, Program]] = {}
        """The idle programs of each tenant by when they were last active."""

    @property
    def all(self) -> Collection[Program]:
        """All programs in the order of creation."""
        return self.by_serial.values()

    def find(self, key: ProgramKey) -> Program | None:
        """Return the program with this key, or None. A request without a program id never finds one."""
        return self._by_key.get(key) if key.name else None

    def create(self, key: ProgramKey, parent: str, now: Micros) -> Program:
        """Create a program; `parent` is the id of the program of the same tenant that forked it, or empty."""
        self._num_created += 1
        of_tenant = self.tenants.setdefault(key.tenant, TenantPrograms())
        of_tenant.num_programs += 1
        program = Program(self._num_created, key, of_tenant, now, has_one_context=self._has_one_context)
        self.by_serial[program.serial] = program
        if key.name:
            self._by_key[key] = program
            forked_by = self.find(key._replace(name=parent))
            if forked_by is not None and forked_by is not program and _may_have_one_more_child(forked_by):
                program.parent = forked_by
                forked_by.children[program.serial] = program
        return program

    def remove(self, program: Program) -> None:
        """Forget a program and its requests."""
        for request_id in (*program.waiting, *program.contexts):
            self.drop_request(request_id)
        self.note_busy(program)
        program.is_forgotten = True
        program.leave_family()
        program.of_tenant.num_programs -= 1
        if not program.of_tenant.num_programs:
            del self.tenants[program.key.tenant]
            self._idle_of.pop(program.key.tenant, None)
        del self.by_serial[program.serial]
        if program.key.name:
            del self._by_key[program.key]

    def drop_request(self, request_id: RequestId) -> Program | None:
        """Forget a request, and return the program that it was one of, or None."""
        self.characters.pop(request_id, None)
        return self.by_request.pop(request_id, None)

    def note_idle(self, program: Program, now: Micros, expires_at: Micros) -> None:
        """Note that no request of a program is under way or waits."""
        self.by_expiry.push(program.serial, expires_at, program)
        tenant = program.key.tenant
        if tenant not in self._idle_of:
            self._idle_of[tenant] = IndexedHeap()
        self._idle_of[tenant].push(program.serial, now, program)

    def note_busy(self, program: Program) -> None:
        """Note that a program is not idle any more."""
        if self.by_expiry.remove(program.serial) is not None:
            self._idle_of[program.key.tenant].remove(program.serial)

    def num_of_tenant(self, tenant: str) -> int:
        """Return how many programs a tenant has."""
        return self.tenants[tenant].num_programs if tenant in self.tenants else 0

    def idlest_of(self, tenant: str) -> Program | None:
        """Return the program of a tenant that is idle for longest, or None if all are busy."""
        return self._idle_of[tenant].peek() if tenant in self._idle_of else None

    def __contains__(self, program: Program) -> bool:
        return program.serial in self.by_serial

    def __len__(self) -> int:
        return len(self.by_serial)


def _may_have_one_more_child(program: Program) -> bool:
    return program.generation < MAX_GENERATIONS and len(program.root.descendants()) < MAX_FAMILY - 1


def shift_deadlines(deadlines: IndexedHeap[int, Micros, Program], by: Micros, now: Micros) -> None:
    """Move all deadlines by `by`, those that would then be over to `now`."""
    if by:
        for due, program in list(deadlines):
            deadlines.push(program.serial, max(now, due + by), program)
