"""One agent program: a run of many requests that share a growing context, and its family.

A program needs the tokens of its requests under way and of its idle contexts together, because these are in KV memory still
(`idle_contexts`). Example: with requests of 900 and 400 tokens under way it needs 1,300. When the first one ends with 1,000 it
needs 1,400; when the second one ends with 450, it needs 1,450. A request of 1,200 continues the first one, and it needs 1,650.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros
from maitred.programs.acting_estimators import ToolTimes
from maitred.programs.enums import ProgramPhase, ProgramState
from maitred.programs.idle_contexts import IdleContexts


class ProgramKey(NamedTuple):
    """What tells programs apart: a tenant's programs are its own, and a program has a context with each model that it asks."""

    tenant: str
    name: str
    """The id that the client gave; empty for a request without one, which is a program of its own."""
    model: str


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a program, as far as the programs room decides by it."""

    id: RequestId
    client_id: str = ""
    """The id by which its client knows the request, for logs."""
    model: str = ""
    tenant: str = ""
    program: str = ""
    """The client's id of the program; empty: the request is a program of its own."""
    parent: str = ""
    """The client's id of the program that forked this one, or empty."""
    priority_class: PriorityClass = PriorityClass.DEFAULT
    characters: int = 0
    """Characters of the body, from which tokens are estimated."""
    prompt_tokens: int | None = None
    """Exact tokens of the prompt; None: they are estimated."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one request, as its backend reports them."""

    prompt_tokens: int
    total_tokens: int
    cached_tokens: int | None = None
    """Tokens of the prompt that were in the prefix cache, or None if it is not reported."""


class TenantPrograms:
    """The sums over all programs of one tenant."""

    # No program is kept here: a copy (pickle) follows what each object keeps, and must not go from program to program.
    __slots__ = ("held_tokens", "num_placed", "num_programs")

    def __init__(self) -> None:
        self.num_programs = 0
        self.num_placed = 0
        """Those that have a place at a backend."""
        self.held_tokens = 0.0
        """Tokens that they are charged, at all backends together."""


class Program:
    """One program, as far as it is known.

    What it does now and whether it holds memory follow from `contexts`, `waiting` and `backend` (`phase`, `state`), and
    `needed_tokens` from these and `idle_contexts`, so that none of them can contradict the others."""

    __slots__ = (
        "acting_share",
        "acting_since",
        "backend",
        "characters",
        "charge",
        "children",
        "contexts",
        "created_at",
        "idle_contexts",
        "inherited_tokens",
        "is_forgotten",
        "is_marked",
        "key",
        "last_active",
        "num_requests",
        "of_tenant",
        "origin",
        "parent",
        "pause_heap",
        "pause_number",
        "priority_class",
        "resumed_at",
        "serial",
        "settles_at",
        "tokens",
        "tools",
        "waiting",
        "waiting_since",
    )

    def __init__(
        self, serial: int, key: ProgramKey, of_tenant: TenantPrograms, now: Micros, *, has_one_context: bool = False
    ) -> None:
        self.serial = serial
        """The number of the program in the order of creation, from 1."""
        self.key, self.of_tenant, self.created_at = key, of_tenant, now
        self.is_forgotten = False
        """Whether no table holds it any more."""
        self.priority_class = PriorityClass.DEFAULT
        """The class of its last request."""
        self.backend: int | None = None
        """The index of the backend where it is registered; None while it is paused."""
        self.origin: int | None = None
        """The index of the backend that it was paused at, or None if it was not paused since it came or was resumed."""
        self.tokens = 0
        """`needed_tokens`, as the orders and sums have it."""
        self.characters = 0
        """Characters of the body of its last request."""
        self.idle_contexts = IdleContexts(is_one=has_one_context)
        """The contexts that its ended requests have left in KV memory; while it is paused, that of the last one."""
        self.contexts: dict[RequestId, int] = {}
        """Tokens of each request under way."""
        self.waiting: dict[RequestId, int] = {}
        """Tokens of each request that waits for memory, oldest first; those of an active program wait until it has left its
        backend."""
        self.num_requests = 0
        """Requests so far."""
        self.last_active = now
        """The instant at which its last request came or ended."""
        self.acting_since: Micros = now
        """While it acts, since when."""
        self.waiting_since: Micros = now
        """While it is paused with a request, since when."""
        self.pause_number = 0
        """While it is paused, the number of its pause among all of its model."""
        self.resumed_at: Micros | None = None
        """When it was last registered with a backend, or None if it never was."""
        self.settles_at: Micros = now
        """When the minimum stay at its backend ends."""
        self.is_marked = False
        """Whether it is to be paused when its requests end."""
        self.tools = ToolTimes()
        self.parent: Program | None = None
        """The program that forked it, as long as that one exists."""
        self.children: dict[int, Program] = {}  # by serial number, as created
        self.inherited_tokens = 0
        """Leading tokens of its context that it shares with its parent."""
        self.acting_share = 1.0
        """Share of its tokens that counts while it acts, as estimated last."""
        self.charge = 0.0
        """Tokens that it counts at its backend now."""
        self.pause_heap: IndexedHeap[int, Any, Program] | None = None
        """The heap of its backend that has it, which says as what it is counted; None before its first place."""

    @property
    def phase(self) -> ProgramPhase:
        """REASONING while a request of it is under way or waits, else ACTING."""
        return ProgramPhase.REASONING if self.contexts or self.waiting else ProgramPhase.ACTING

    @property
    def state(self) -> ProgramState:
        """Whether it may hold KV memory."""
        if self.is_forgotten:
            return ProgramState.TERMINATED
        return ProgramState.PAUSED if self.backend is None else ProgramState.ACTIVE

    @property
    def is_anonymous(self) -> bool:
        """Whether it is a request without a program id."""
        return not self.key.name

    @property
    def is_busy(self) -> bool:
        """Whether a request of it is under way or waits."""
        return bool(self.contexts or self.waiting)

    @property
    def root(self) -> Program:
        """The oldest ancestor. The whole family has its place in every order."""
        program = self
        while program.parent is not None:
            program = program.parent
        return program

    @property
    def generation(self) -> int:
        """How many ancestors it has."""
        program, ancestors = self, 0
        while program.parent is not None:
            program, ancestors = program.parent, ancestors + 1
        return ancestors

    def descendants(self) -> list[Program]:
        """Return its children, their children and so on, parents first."""
        found = list(self.children.values())
        for program in found:
            found.extend(program.children.values())
        return found

    @property
    def unshared_tokens(self) -> int:
        """Tokens that it needs beside its parent: its common prefix counts once, if both are at one backend."""
        parent = self.parent
        if parent is None or parent.backend is None or parent.backend != self.backend:
            return self.tokens
        return max(0, self.tokens - self.inherited_tokens)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of all its requests that wait."""
        return sum(self.waiting.values())

    def needed_tokens(self) -> int:
        """Tokens that it needs in KV memory: those of its requests under way and of its idle contexts; while it is paused,
        those of its requests that wait, or of its last one."""
        if self.backend is not None:
            contexts = self.contexts
            return self.idle_contexts.beside(sum(contexts.values())) if contexts else self.idle_contexts.tokens
        return self.waiting_tokens if self.waiting else self.idle_contexts.tokens  # one at most (`keep_last`)

    def begin_context(self, request_id: RequestId, tokens: int, limit: float) -> None:
        """Count a request as under way. `limit`: the tokens of the largest program that fits into the memory."""
        if self.idle_contexts.all:
            self.idle_contexts.begin_request(tokens, self.contexts.values(), limit)
        self.contexts[request_id] = tokens

    def end_context(self, request_id: RequestId, tokens: int, limit: float, now: Micros) -> None:
        """Note that a request under way has ended with `tokens`; `limit` as in `begin_context`. The caller updates `tokens`."""
        del self.contexts[request_id]
        self.idle_contexts.end_request(tokens, self.contexts.values(), limit)
        if not (self.contexts or self.waiting):
            self.acting_since = now

    def note_inherited(self, cached_tokens: int | None, total: int) -> None:
        """After the first request of a child: what was cached of its prompt is what it shares with its parent, at most."""
        if self.parent is not None and not self.inherited_tokens and cached_tokens:
            self.inherited_tokens = min(cached_tokens, self.parent.tokens, total)

    def leave_family(self) -> None:
        """Cut the ties to parent and children."""
        if self.parent is not None:
            del self.parent.children[self.serial]
            self.parent = None
        for child in self.children.values():
            child.parent = None
        self.children.clear()
