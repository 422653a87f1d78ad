"""Agenda: what an input has left to settle.

An input changes programs and backends, and notes here what that may have made possible or necessary for others. Before the
input is answered, `Passes.settle` works the notes off until there is none:

    wanting     a program has begun to wait, or has left the queue: the first ones that fit at these backends are resumed
    outgrown    a backend has become smaller: requests that no backend can hold any more are refused
    grown       a program of a backend has begun a request: if all need more than there is, acting ones are paused, reasoning
                ones marked; marks that are not needed are withdrawn
    changed     a backend has other programs, or another capacity, than before: the same, and in the room that there is the
                first ones that fit are resumed

The first line that has a note is settled first: a refusal leaves the queue, which notes that its model wants, and the next
refusal sees who was let in. After that, for everything that was noted,

 1. a backend has as much as its programs need; or all of them reason, and what the marked ones will free covers the rest, or
    all are marked;
 2. but for a note of growth, which lets none in: of the first four programs that are paused none fits at a backend that is not
    held for another one.

The growth of a response and the end of `max_wait_secs` break these and note nothing: the next event there, or a tick, finds it.

It ends because each note is worked off once, and of all that is done then only a refusal, which takes a request out of the
queue, notes anything. Programs themselves leave nothing to settle: after each change the place of one is found anew (`places`).

Example: a program ends its last request, so it acts, with 3,000 tokens more than it was thought to have. Its backend is noted
as changed. It now lacks 1,000 tokens, so the smallest acting program, one of 2,000, is paused; the 1,000 that are left then let
in a program of 800 that waits.

The flavour `thunderagent` and the mode `default` settle nothing between ticks, and note nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from maitred.programs.backend_memory import BackendMemory
from maitred.programs.model_pool import ModelPool
from maitred.programs.program import Program


class Want(NamedTuple):
    """Programs of a model may be resumed at these backends."""

    pool: ModelPool
    backends: Sequence[BackendMemory]


class Agenda:
    """The notes of one core, in the order in which they were made."""

    def __init__(self, *, acts_at_events: bool) -> None:
        """`acts_at_events` says whether anything is settled between ticks."""
        self._acts_at_events = acts_at_events
        self.wanting: list[Want] = []
        self.outgrown: list[Program] = []
        """Paused programs with a request that no backend can hold any more."""
        self.grown: list[BackendMemory] = []
        self.changed: list[BackendMemory] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to settle."""
        return not (self.wanting or self.outgrown or self.grown or self.changed)

    def note_wanting(self, pool: ModelPool, backends: Sequence[BackendMemory]) -> None:
        """Note that a program has begun to wait for one of `backends`, or that one waits no more."""
        if self._acts_at_events:
            self.wanting.append(Want(pool, backends))

    def note_growth(self, backend: BackendMemory) -> None:
        """Note that a program of a backend has grown."""
        if self._acts_at_events:
            self.grown.append(backend)

    def note_change(self, backend: BackendMemory) -> None:
        """Note that the programs of a backend, or what it has, are others than before."""
        if self._acts_at_events:
            self.changed.append(backend)
