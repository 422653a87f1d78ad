"""The KV memory of one backend, or of one data-parallel rank of it, and the programs that hold it.

    used      = reasoning tokens + charged acting tokens - shared tokens + buffer_tokens * programs
    remaining = capacity - used

(ThunderAgent's formula.) An acting program is charged the share of its tokens that the acting estimator says. The estimator is
asked when the program begins to act, when it is registered and at each tick, so that `used` is a sum that each event changes by
one program. A charge is a multiple of 2^-10 tokens: such numbers add up without rounding, so the sum does not depend on the
order of events.

Example: capacity 10,000; a reasoning program of 4,000 tokens, and one of 3,000 that acts and counts half; nothing is shared.
Used are 4,000 + 1,500 + 2 * 100 = 5,700, and 4,300 remain.

A capacity of None (the backend does not report one) never runs out.

Shared tokens are reported now and then, and the programs that share them may go in between. Until the next report they are the
reported part of what is left: 3,000 of 12,000 tokens shared become 1,000 when 4,000 are left. They never grow by themselves,
because a new program may share nothing.

The programs are kept in heaps in the order in which they are to be paused: lower classes first, then those with the fewest
tokens, then those that came first. Acting programs are in one of two: *settled* ones, and those with a minimum stay that is not
over. A marked program is to be paused when its requests end; it is in neither heap, and the tokens that its end will free are
known (`marked_tokens`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf
from typing import TypeAlias

from maitred.core.errors import InvariantError
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import PriorityClass
from maitred.core.units import Micros
from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.enums import BackendStatus, ProgramStatus
from maitred.programs.program import Program

PauseOrder: TypeAlias = tuple[int, int, int, int]
_Heap: TypeAlias = IndexedHeap[int, PauseOrder, Program]
_IDLE_SHARE = 1 / 32
"""Of its tokens, from which an acting program has most likely ended without saying so."""
_REASONING = ProgramStatus.REASONING


class BackendMemory:
    """The memory with this `index`, as a driver numbers them."""

    def __init__(
        self, index: int, estimator: ActingEstimator, buffer_tokens: int, held: dict[str, float] | None = None
    ) -> None:
        """`held`: the charged tokens of each tenant that has some, at all backends together, which this one keeps up."""
        self.index = index
        self._held: dict[str, float] = {} if held is None else held
        self.status = BackendStatus.UP
        self.capacity: int | None = None
        """Tokens of KV, or None if unknown."""
        self.reasoning_tokens = 0
        self.acting_charge = 0.0
        self.num_reasoning = 0
        self.marked: dict[int, Program] = {}
        """Programs to be paused, by serial number."""
        self.marked_tokens = 0
        """Tokens that pausing them will free, buffers included."""
        self._reported_shared = 0
        self._active_at_report = 0
        self._estimator = estimator
        self._buffer = buffer_tokens
        self._programs: dict[int, Program] = {}
        self._reasoning: _Heap = IndexedHeap()
        self._settled: _Heap = IndexedHeap()
        self._unsettled: _Heap = IndexedHeap()
        self._settled_until: Micros = 0
        self._settling: deque[tuple[Micros, Program]] = deque()
        """Programs by when their minimum stay ends, in the order in which they were registered."""
        self._marked_by_size: IndexedHeap[int, int, Program] = IndexedHeap()

    @property
    def programs(self) -> Collection[Program]:
        """All programs that are registered here."""
        return self._programs.values()

    @property
    def num_programs(self) -> int:
        """How many programs are registered here."""
        return len(self._programs)

    @property
    def active_tokens(self) -> int:
        """Charged tokens of all programs, without buffers; what is shared counts for each."""
        return int(self.reasoning_tokens + self.acting_charge)

    @property
    def shared_tokens(self) -> int:
        """Tokens that several programs share, and that therefore count once too often in the sum."""
        if not self._reported_shared:
            return 0
        active = self.active_tokens
        if active >= self._active_at_report:
            return self._reported_shared
        return self._reported_shared * active // self._active_at_report

    @property
    def used(self) -> int:
        """Tokens that the programs need."""
        active = int(self.reasoning_tokens + self.acting_charge)
        if self._reported_shared:
            active -= self.shared_tokens
        return active + self._buffer * len(self._programs)

    @property
    def remaining(self) -> float:
        """Tokens that are left, negative if the programs need more than there is; infinite if the capacity is not known."""
        return inf if self.capacity is None else self.capacity - self.used

    @property
    def largest_program(self) -> float:
        """Tokens of the largest program that fits; infinite if the capacity is not known."""
        return inf if self.capacity is None else self.capacity - self._buffer

    @property
    def is_open(self) -> bool:
        """Whether programs may be placed here."""
        return self.status is BackendStatus.UP

    def report_shared(self, tokens: int) -> None:
        """Take over how many tokens are shared now: not more than the programs have."""
        self._active_at_report = self.active_tokens
        self._reported_shared = min(max(0, tokens), self._active_at_report)

    def add(self, program: Program, now: Micros) -> None:
        """Register a program."""
        self._programs[program.serial] = program
        program.backend = self.index
        if program.settles_at > self._settled_until:
            if self._settling:  # a shorter minimum stay, newly configured, keeps the order
                program.settles_at = max(program.settles_at, self._settling[-1][0])
            self._settling.append((program.settles_at, program))
        self._estimate(program, now)
        self._charge(program)
        self._recharge_children(program)

    def remove(self, program: Program) -> None:
        """Take a program out."""
        self.unmark(program)
        self._uncharge(program)
        del self._programs[program.serial]
        program.backend = None
        self._recharge_children(program)

    def set_status(self, program: Program, status: ProgramStatus, now: Micros) -> None:
        """Change what a program does, and charge its tokens accordingly."""
        self._uncharge(program)
        program.status = status
        self._estimate(program, now)
        self._charge(program)

    def recharge(self, program: Program) -> None:
        """Charge a program again after its tokens, or its place in the order, have changed."""
        self._uncharge(program)
        self._charge(program)

    def _recharge_children(self, program: Program) -> None:
        """What a child shares with its parent counts once only while both are here."""
        for child in program.children.values():
            if child.backend == self.index:
                self.recharge(child)

    def _estimate(self, program: Program, now: Micros) -> None:
        if program.status is not _REASONING:
            program.acting_share = self._estimator.share(now - program.acting_since, program.tools)

    def _charge(self, program: Program) -> None:
        tokens = program.tokens if program.parent is None else program.unshared_tokens
        if program.status is _REASONING:
            program.charge = float(tokens)
            self.reasoning_tokens += tokens
            self.num_reasoning += 1
            if program.is_marked:
                self.marked_tokens += tokens + self._buffer
                self._marked_by_size.push(program.serial, tokens, program)
            else:
                self._reasoning.push(program.serial, pause_order(program), program)
        else:
            program.charge = _charge_of(program.acting_share, tokens)
            self.acting_charge += program.charge
            self._acting_heap(program).push(program.serial, pause_order(program), program)
        self._note_held(program.key.tenant, program.charge)

    def _note_held(self, tenant: str, change: float) -> None:
        """Note that a tenant holds `change` tokens more."""
        tokens = self._held.get(tenant, 0.0) + change
        if tokens:
            self._held[tenant] = tokens
        else:
            self._held.pop(tenant, None)

    def _uncharge(self, program: Program) -> None:
        self._note_held(program.key.tenant, -program.charge)
        if program.status is _REASONING:
            self.reasoning_tokens -= int(program.charge)
            self.num_reasoning -= 1
            if program.is_marked:
                self.marked_tokens -= int(program.charge) + self._buffer
            else:
                self._reasoning.remove(program.serial)
        else:
            self.acting_charge -= program.charge
            self._acting_heap(program).remove(program.serial)

    def _acting_heap(self, program: Program) -> _Heap:
        return self._settled if program.settles_at <= self._settled_until else self._unsettled

    def settle(self, now: Micros) -> None:
        """Note that minimum stays that end by `now` have ended."""
        self._settled_until = now
        if self._settling and self._settling[-1][0] <= now and not len(self._settled):
            self._settled, self._unsettled = self._unsettled, self._settled  # all have: one step instead of one for each
            self._settling.clear()
        while self._settling and self._settling[0][0] <= now:
            _, program = self._settling.popleft()
            # It may have left since, or have been registered again: then a later entry speaks of it.
            if program.settles_at <= now and self._unsettled.remove(program.serial) is not None:
                self._settled.push(program.serial, pause_order(program), program)

    def reestimate(self, now: Micros) -> None:
        """Ask the estimator again what each acting program counts."""
        if not self._estimator.changes_with_time:
            return
        # Only sums change and no order: pauses go by tokens, and not by what a program counts.
        total = 0.0
        share = self._estimator.share
        for heap in (self._settled, self._unsettled):
            for _, program in heap:
                program.acting_share = share(now - program.acting_since, program.tools)
                charge = _charge_of(program.acting_share, program.unshared_tokens)
                self._note_held(program.key.tenant, charge - program.charge)
                program.charge = charge
                total += charge
        self.acting_charge = total

    def freed_by(self, program: Program) -> float:
        """Return the tokens that pausing a program frees, its buffer included."""
        return program.charge + self._buffer

    def mark(self, program: Program) -> None:
        """Note that a reasoning program is to be paused when its requests end."""
        self._reasoning.remove(program.serial)
        program.is_marked = True
        self.marked[program.serial] = program
        self.marked_tokens += int(program.charge) + self._buffer
        self._marked_by_size.push(program.serial, int(program.charge), program)

    def unmark(self, program: Program) -> None:
        """Withdraw the mark of a program, if it has one."""
        if not program.is_marked:
            return
        program.is_marked = False
        del self.marked[program.serial]
        self.marked_tokens -= int(program.charge) + self._buffer
        self._marked_by_size.remove(program.serial)
        self._reasoning.push(program.serial, pause_order(program), program)

    def smallest_mark(self) -> Program | None:
        """Return the marked program that frees the fewest tokens, or None."""
        return self._marked_by_size.peek()

    def take_acting(self, missing: float, *, settled: bool, up_to: PriorityClass = max(PriorityClass)) -> list[Program]:
        """Take the first acting programs out of the order of pauses: those of the class `up_to` or lower that free `missing`
        tokens together, or all if they do not. `settled` says of which kind. Each must be paused, or be put back."""
        heap = self._settled if settled else self._unsettled
        found: list[Program] = []
        while missing > 0 and (program := heap.peek()) is not None and program.root.priority_class <= up_to:
            found.append(heap.pop())
            missing -= program.charge + self._buffer
        return found

    def idle_programs(self, up_to: PriorityClass) -> list[Program]:
        """Return the acting programs of the class `up_to` or lower that hardly count any more, in the order of pauses. Their
        buffers count all the same."""
        acting = (p for p in self.programs if p.status is not _REASONING and p.acting_share <= _IDLE_SHARE)
        return sorted((p for p in acting if p.root.priority_class <= up_to), key=pause_order)

    def acting_programs(self) -> list[Program]:
        """Return the acting programs in the order of pauses."""
        return sorted((p for p in self.programs if p.status is not _REASONING), key=pause_order)

    def put_back(self, program: Program) -> None:
        """Put a program back that `take_acting` took."""
        self._acting_heap(program).push(program.serial, pause_order(program), program)

    def first_reasoning(self) -> Program | None:
        """Return the reasoning program to be marked first, or None if all are marked."""
        return self._reasoning.peek()

    def check(self) -> None:
        """Raise InvariantError if the sums are not those of the programs."""
        self._check_sums()
        self._check_marks()
        for program in self.programs:
            if program.backend != self.index:
                raise InvariantError(f"backend {self.index}: {program.key} is elsewhere")
        self._check_heaps(len(self.marked))

    def _check_sums(self) -> None:
        reasoning = [p for p in self.programs if p.status is _REASONING]
        if self.reasoning_tokens != sum(p.unshared_tokens for p in reasoning) or self.num_reasoning != len(reasoning):
            raise InvariantError(
                f"backend {self.index}: reasoning tokens {self.reasoning_tokens} are not those of its programs"
            )
        acting = sum(p.charge for p in self.programs if p.status is not _REASONING)
        if self.acting_charge != acting:
            raise InvariantError(f"backend {self.index}: charge {self.acting_charge} is not {acting}")

    def _check_marks(self) -> None:
        marked = [p for p in self.programs if p.is_marked]
        if set(self.marked) != {p.serial for p in marked} or len(self._marked_by_size) != len(marked):
            raise InvariantError(f"backend {self.index}: marks differ")
        if self.marked_tokens != sum(int(p.charge) + self._buffer for p in marked):
            raise InvariantError(f"backend {self.index}: marked tokens {self.marked_tokens}")

    def _check_heaps(self, num_marked: int) -> None:
        if len(self._settled) + len(self._unsettled) + len(self._reasoning) + num_marked != self.num_programs:
            raise InvariantError(f"backend {self.index}: a program is in no heap, or in two")
        for heap in (self._settled, self._unsettled, self._reasoning):
            for order, program in heap:
                if order != pause_order(program):
                    raise InvariantError(f"backend {self.index}: {program.key} has a place that is not its own")


def pause_order(program: Program) -> PauseOrder:
    """Return the order in which programs are paused; a family is together, in the place of its root."""
    root = program if program.parent is None else program.root
    return (root.priority_class, root.tokens, root.serial, program.serial)


def _charge_of(share: float, tokens: int) -> float:
    return float(tokens) if share == 1 else round(share * tokens * 1024) / 1024
