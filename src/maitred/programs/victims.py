"""Victims: which programs of one backend are paused when they need more than it has.

Acting programs, smallest first, until what remains is not negative. If that is not enough, reasoning programs are marked,
smallest first, until what their ends will free covers the rest; a mark that is not needed any more is withdrawn. A marked
program is paused when its requests end, and only if the pressure lasts.

Example: 1,400 tokens are missing, and programs of 1,000, 2,000 and 3,000 act, with buffers of 100. The first two in order free
1,100 and 2,100, which is enough; but the second one does so alone, so the first one is spared.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.core.units import Micros
from maitred.programs.backend_memory import BackendMemory, pause_order
from maitred.programs.program import Program


def plan_pauses(backend: BackendMemory, now: Micros, *, spares: bool) -> Sequence[Program]:
    """Return the acting programs to be paused at `backend` first. They may free less than is missing, because the children of a
    paused program share less: so the caller asks again. `spares`: `ProgramRules.spares_victims`."""
    missing = -backend.remaining
    backend.settle(now)
    # Those that have just been placed come last: a program that is paused and resumed in turns computes its context each time.
    settled = backend.take_acting(missing, settled=True)
    missing_still = missing - sum(map(backend.freed_by, settled))
    if missing_still <= 0:
        return spare(backend, settled, missing) if spares else settled
    unsettled = backend.take_acting(missing_still, settled=False)
    return [*settled, *(spare(backend, unsettled, missing_still) if spares else unsettled)]


def spare(backend: BackendMemory, victims: Sequence[Program], missing: float) -> Sequence[Program]:
    """Return those of `victims` that must be paused to free `missing` tokens; put the others back."""
    # The order is by size, so the last one that was needed may free enough without the smaller ones before it. These would be
    # paused in vain, and be resumed at once in the room that is left.
    excess = sum(map(backend.freed_by, victims)) - missing
    kept = []
    for program in victims:
        freed = backend.freed_by(program)
        # A program of a lower class than the last one is never spared, or it would stay while one of a higher class goes.
        if freed <= excess and program.root.priority_class == victims[-1].root.priority_class:
            excess -= freed
            backend.put_back(program)
        else:
            kept.append(program)
    return kept


def update_marks(backend: BackendMemory) -> tuple[Sequence[Program], Sequence[Program]]:
    """Withdraw the marks at `backend` that are not needed, and mark more programs if it lacks more. Return the programs that
    have been marked, and those that are not any more."""
    excess = max(0.0, -backend.remaining)
    withdrawn = _withdraw_marks(backend, excess)
    marks = []
    while backend.marked_tokens < excess and (program := backend.first_reasoning()) is not None:
        backend.mark(program)
        marks.append(program)
    # XXX: with the last of them some of the marks before it may not be needed. They are withdrawn at the next event there.
    return marks, withdrawn


def _withdraw_marks(backend: BackendMemory, excess: float) -> Sequence[Program]:
    """Withdraw marks without which the others still cover `excess` tokens."""
    withdrawn = []
    # Usually no mark can be withdrawn, and looking at the smallest one tells: then nothing is sorted.
    smallest = backend.marked.peek()
    if smallest is not None and backend.marked_tokens - backend.freed_by(smallest) >= excess:
        # From the end of the order of pauses, so that higher classes and larger programs keep their places.
        for program in sorted((p for _, p in backend.marked), key=pause_order, reverse=True):
            if backend.marked_tokens - backend.freed_by(program) >= excess:
                backend.unmark(program)
                withdrawn.append(program)
    return withdrawn
