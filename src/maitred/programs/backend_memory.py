"""The KV memory of one backend, or of one data-parallel rank of it, and the programs that hold it.

    used      = reasoning tokens + charged acting tokens - shared tokens + buffer_tokens * programs
    remaining = capacity - used

(ThunderAgent's formula.) An acting program is charged the share of its tokens that the acting estimator says; the share
changes with time only when `reestimate` is called, at each tick, so that `used` is a sum that each event changes by one
program. Example: capacity 10,000; a reasoning program of 4,000 tokens, and one of 3,000 that acts and counts half; nothing
is shared. Used are 4,000 + 1,500 + 2 * 100 = 5,700, and 4,300 remain.

A capacity of None (the backend does not report one) never runs out.

The programs are kept in two heaps, acting and reasoning, in the order in which they are to be paused: lower classes first,
then those with the fewest tokens, then those that came first. A marked program is to be paused when its requests end; it is
in neither heap, and the tokens that its end will free are known (`marked_tokens`).
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import TypeAlias

from maitred.core.errors import InvariantError
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.units import Micros
from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.enums import BackendStatus, ProgramStatus
from maitred.programs.program import Program

PauseOrder: TypeAlias = tuple[int, int, int, int]
_REASONING = ProgramStatus.REASONING


class BackendMemory:
    """The memory with this `index`, as a driver numbers them."""

    def __init__(self, index: int, estimator: ActingEstimator, buffer_tokens: int) -> None:
        self.index = index
        self.status = BackendStatus.UP
        self.capacity: int | None = None
        """Tokens of KV, or None if unknown."""
        self.shared_tokens = 0
        """Tokens that several programs share, and that therefore count once too often in the sum."""
        self.reasoning_tokens = 0
        self.acting_charge = 0.0
        self.num_reasoning = 0
        self.marked: dict[int, Program] = {}
        """Programs to be paused, by serial number."""
        self.marked_tokens = 0
        """Tokens that pausing them will free, buffers included."""
        self._estimator = estimator
        self._buffer = buffer_tokens
        self._programs: dict[int, Program] = {}
        self._acting: IndexedHeap[int, PauseOrder, Program] = IndexedHeap()
        self._reasoning: IndexedHeap[int, PauseOrder, Program] = IndexedHeap()

    @property
    def programs(self) -> Collection[Program]:
        """All programs that are registered here."""
        return self._programs.values()

    @property
    def num_programs(self) -> int:
        """How many programs are registered here."""
        return len(self._programs)

    @property
    def num_acting(self) -> int:
        """How many programs act here."""
        return len(self._programs) - self.num_reasoning

    @property
    def active_tokens(self) -> int:
        """Charged tokens of all programs, without buffers; what is shared counts for each."""
        return int(self.reasoning_tokens + self.acting_charge)

    @property
    def used(self) -> int:
        """Tokens that the programs need."""
        return int(self.reasoning_tokens + self.acting_charge) - self.shared_tokens + self._buffer * len(self._programs)

    @property
    def remaining(self) -> float:
        """Tokens that are left, negative if the programs need more than there is; infinite if the capacity is not known."""
        return inf if self.capacity is None else self.capacity - self.used

    @property
    def is_open(self) -> bool:
        """Whether programs may be placed here."""
        return self.status is BackendStatus.UP

    def add(self, program: Program, now: Micros) -> None:
        """Register a program."""
        self._programs[program.serial] = program
        program.backend = self.index
        self._charge(program, now)
        self._recharge_children(program, now)

    def remove(self, program: Program, now: Micros) -> None:
        """Take a program out."""
        self.unmark(program)
        self._uncharge(program)
        del self._programs[program.serial]
        program.backend = None
        self._recharge_children(program, now)
        if not self._programs:  # no rounding is carried from one busy time to the next
            self.acting_charge = 0.0

    def set_status(self, program: Program, status: ProgramStatus, now: Micros) -> None:
        """Change what a program does, and charge its tokens accordingly."""
        self._uncharge(program)
        program.status = status
        self._charge(program, now)

    def recharge(self, program: Program, now: Micros) -> None:
        """Charge a program again after its tokens have changed."""
        self._uncharge(program)
        self._charge(program, now)

    def _recharge_children(self, program: Program, now: Micros) -> None:
        """What a child shares with its parent counts once only while both are here."""
        for child in program.children:
            if child.backend == self.index:
                self.recharge(child, now)

    def _charge(self, program: Program, now: Micros) -> None:
        tokens = program.unshared_tokens
        order = pause_order(program)
        if program.status is _REASONING:
            program.charge = float(tokens)
            self.reasoning_tokens += tokens
            self.num_reasoning += 1
            if program.is_marked:
                self.marked_tokens += tokens + self._buffer
            else:
                self._reasoning.push(program.serial, order, program)
        else:
            program.charge = self._estimator.share(now - program.acting_since, program.tools) * tokens
            self.acting_charge += program.charge
            self._acting.push(program.serial, order, program)

    def _uncharge(self, program: Program) -> None:
        if program.status is _REASONING:
            self.reasoning_tokens -= int(program.charge)
            self.num_reasoning -= 1
            if program.is_marked:
                self.marked_tokens -= int(program.charge) + self._buffer
            else:
                self._reasoning.remove(program.serial)
        else:
            self.acting_charge -= program.charge
            self._acting.remove(program.serial)

    def reestimate(self, now: Micros) -> None:
        """Ask the estimator again what each acting program counts."""
        if not self._estimator.changes_with_time:
            return
        total = 0.0
        for _, program in self._acting:
            program.charge = self._estimator.share(now - program.acting_since, program.tools) * program.unshared_tokens
            total += program.charge
        self.acting_charge = total

    def mark(self, program: Program) -> None:
        """Note that a reasoning program is to be paused when its requests end."""
        self._reasoning.remove(program.serial)
        program.is_marked = True
        self.marked[program.serial] = program
        self.marked_tokens += int(program.charge) + self._buffer

    def unmark(self, program: Program) -> None:
        """Withdraw the mark of a program, if it has one."""
        if not program.is_marked:
            return
        program.is_marked = False
        del self.marked[program.serial]
        self.marked_tokens -= int(program.charge) + self._buffer
        self._reasoning.push(program.serial, pause_order(program), program)

    def first_acting(self) -> Program | None:
        """Return the acting program to be paused first, or None."""
        return self._acting.peek()

    def pop_acting(self) -> Program:
        """Take the first one out of the heap, to look at the next; give it back with `put_back`."""
        return self._acting.pop()

    def put_back(self, program: Program) -> None:
        """Undo `pop_acting`."""
        self._acting.push(program.serial, pause_order(program), program)

    def first_reasoning(self) -> Program | None:
        """Return the reasoning program to be marked first, or None if all are marked."""
        return self._reasoning.peek()

    def check(self) -> None:
        """Raise InvariantError if the sums are not those of the programs."""
        reasoning = [p for p in self.programs if p.status is _REASONING]
        if self.reasoning_tokens != sum(p.unshared_tokens for p in reasoning) or self.num_reasoning != len(reasoning):
            raise InvariantError(
                f"backend {self.index}: reasoning tokens {self.reasoning_tokens} are not those of its programs"
            )
        acting = sum(p.charge for p in self.programs if p.status is not _REASONING)
        if abs(self.acting_charge - acting) > 1e-6 * max(1.0, acting):
            raise InvariantError(f"backend {self.index}: charge {self.acting_charge} is not {acting}")
        marked = [p for p in self.programs if p.is_marked]
        if set(self.marked) != {p.serial for p in marked}:
            raise InvariantError(f"backend {self.index}: marks differ")
        if self.marked_tokens != sum(int(p.charge) + self._buffer for p in marked):
            raise InvariantError(f"backend {self.index}: marked tokens {self.marked_tokens}")
        if len(self._acting) + len(self._reasoning) + len(marked) != self.num_programs:
            raise InvariantError(f"backend {self.index}: a program is in no heap, or in two")
        for program in self.programs:
            if program.backend != self.index:
                raise InvariantError(f"backend {self.index}: {program.key} is elsewhere")


def pause_order(program: Program) -> PauseOrder:
    """Return the order in which programs are paused; a family is together, in the place of its root."""
    root = program.root
    return (root.priority_class.value, root.tokens, root.serial, program.serial)
