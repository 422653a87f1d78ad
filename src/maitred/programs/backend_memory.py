"""The KV memory of one backend, or of one data-parallel rank of it, and the programs that hold it.

    used      = reasoning tokens + charged acting tokens - shared tokens + buffer_tokens * programs
    remaining = capacity - used

(ThunderAgent's formula.) An acting program is charged the share of its tokens that the acting estimator says. A capacity of
None (the backend does not report one) never runs out.

Example: capacity 10,000; a reasoning program of 4,000 tokens, and one of 3,000 that acts and counts half; nothing is shared.
Used are 4,000 + 1,500 + 2 * 100 = 5,700, and 4,300 remain.

Each program is in one of four heaps, and counts accordingly (`_count`): acting ones among the *settled* ones, or among those
with a minimum stay that is not over; reasoning ones among those that can be marked, or among the marked ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf
from typing import Any, Final, TypeAlias

from maitred.core.errors import InvariantError
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import PriorityClass
from maitred.core.units import Micros
from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.enums import BackendStatus, ProgramReason
from maitred.programs.program import Program, TenantPrograms

PauseOrder: TypeAlias = tuple[int, int, int, int]
_Heap: TypeAlias = IndexedHeap[int, PauseOrder, Program]
_IDLE_SHARE = 1 / 32
"""Of its tokens, from which an acting program has most likely ended without saying so: with `learned`, 5 s after four times its
usual tool time. XXX: a guess. To be measured: how many recorded programs come back after that."""
_UP: Final = BackendStatus.UP  # a look-up in the class takes as long as a call


class BackendMemory:
    """The memory with this `index`, as a driver numbers them."""

    def __init__(self, index: int, estimator: ActingEstimator, buffer_tokens: int, holding: dict[str, TenantPrograms]) -> None:
        """`holding`: the tenants whose programs have a place at some backend, which this one keeps up."""
        self.index = index
        self._holding = holding
        self.status = BackendStatus.UP
        self.models: frozenset[str] = frozenset()
        """The models that it serves."""
        self.capacity: int | None = None
        """Tokens of KV, or None if unknown."""
        self.largest_program: float = inf
        """Tokens of the largest program that fits; infinite if the capacity is not known."""
        self.reasoning_tokens = 0
        self.acting_charge = 0.0
        self.marked: IndexedHeap[int, int, Program] = IndexedHeap()
        """Programs to be paused when their requests end, by their tokens."""
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
        # Programs that share may go before the next report. Until then the reported part of what is left is shared: 3,000 of
        # 12,000 tokens become 1,000 when 4,000 are left. It never grows, because a program that comes may share nothing.
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
    def is_open(self) -> bool:
        """Whether programs may be placed here."""
        return self.status is _UP

    def reason_to_leave(self, program: Program) -> ProgramReason | None:
        """Return why a program must leave when no request of it is under way here any more, or None if it need not."""
        if self.status is _UP and program.key.model in self.models:
            return None
        return ProgramReason.BACKEND_DOWN if self.status is BackendStatus.DOWN else ProgramReason.DRAINED

    def set_capacity(self, capacity: int | None) -> None:
        """Take over another capacity."""
        self.capacity = capacity
        self.largest_program = inf if capacity is None else capacity - self._buffer

    def report_shared(self, tokens: int) -> None:
        """Take over how many tokens are shared now: not more than the programs have."""
        self._active_at_report = self.active_tokens
        self._reported_shared = min(max(0, tokens), self._active_at_report)

    def add(self, program: Program, now: Micros) -> None:
        """Register a program."""
        self._programs[program.serial] = program
        program.backend = self.index
        tenant = program.of_tenant
        tenant.num_placed += 1
        if tenant.num_placed == 1:
            self._holding[program.key.tenant] = tenant
        if program.settles_at > self._settled_until:
            if self._settling:  # a shorter minimum stay, newly configured, keeps the order
                program.settles_at = max(program.settles_at, self._settling[-1][0])
            self._settling.append((program.settles_at, program))
        program.tokens = program.needed_tokens()
        if not (program.contexts or program.waiting):
            self.estimate(program, now)
        self._count(program)

    def remove(self, program: Program) -> None:
        """Take a program out."""
        self._discount(program).remove(program.serial)
        del self._programs[program.serial]
        program.backend, program.is_marked = None, False
        tenant = program.of_tenant
        tenant.num_placed -= 1
        if not tenant.num_placed:
            del self._holding[program.key.tenant]

    def estimate(self, program: Program, now: Micros) -> None:
        """Ask the estimator what an acting program counts: when it begins to act, and when it is registered."""
        # At other times only at ticks (`reestimate`), so that an event changes the sums by one program.
        program.acting_share = self._estimator.share(now - program.acting_since, program.tools)

    def update(self, program: Program) -> None:
        """Count a program anew, by what it is now, and find its place in the order of pauses."""
        heap = self._discount(program)
        self._count(program)
        if program.pause_heap is not heap:
            heap.remove(program.serial)

    def _count(self, program: Program) -> None:
        heap: IndexedHeap[int, Any, Program]
        tokens = program.tokens if program.parent is None else program.unshared_tokens
        charge = float(tokens)
        if not (program.contexts or program.waiting):
            if program.acting_share != 1:
                charge = _charge_of(program.acting_share, tokens)
            self.acting_charge += charge
            heap = self._settled if program.settles_at <= self._settled_until else self._unsettled
            heap.push(program.serial, pause_order(program), program)
        else:
            self.reasoning_tokens += tokens
            if program.is_marked:
                self.marked_tokens += tokens + self._buffer
                heap = self.marked
                heap.push(program.serial, tokens, program)
            else:
                heap = self._reasoning
                heap.push(program.serial, pause_order(program), program)
        program.pause_heap = heap
        program.charge = charge
        program.of_tenant.held_tokens += charge

    def _discount(self, program: Program) -> IndexedHeap[int, Any, Program]:
        """Take out of the sums what was counted of a program, and return the heap that has it. Its fields may have changed
        since, so the heap tells what it was counted as."""
        heap, charge = program.pause_heap, program.charge
        assert heap is not None, "a program with a place has been counted"
        if heap is self._reasoning or heap is self.marked:
            self.reasoning_tokens -= int(charge)
            if heap is self.marked:
                self.marked_tokens -= int(charge) + self._buffer
        else:
            self.acting_charge -= charge
        program.of_tenant.held_tokens -= charge
        return heap

    def settle(self, now: Micros) -> None:
        """Note that minimum stays that end by `now` have ended."""
        self._settled_until = now
        if self._settling and self._settling[-1][0] <= now and not self._settled.live:
            self._settled, self._unsettled = self._unsettled, self._settled  # all have: one step instead of one for each
            self._settling.clear()
        while self._settling and self._settling[0][0] <= now:
            _, program = self._settling.popleft()
            # It may have left since, or have been registered again: then a later entry speaks of it.
            if program.settles_at <= now and self._unsettled.remove(program.serial) is not None:
                program.pause_heap = self._settled
                self._settled.push(program.serial, pause_order(program), program)

    def reestimate(self, now: Micros) -> None:
        """Ask the estimator again what each acting program counts."""
        if not self._estimator.changes_with_time:
            return
        # Only sums change and no order: pauses go by tokens, and not by what a program counts.
        total, share = 0.0, self._estimator.share
        for program in self._acting():
            program.acting_share = share(now - program.acting_since, program.tools)
            charge = _charge_of(program.acting_share, program.tokens if program.parent is None else program.unshared_tokens)
            if charge != program.charge:
                program.of_tenant.held_tokens += charge - program.charge
                program.charge = charge
            total += charge
        self.acting_charge = total

    def _acting(self) -> list[Program]:
        """Return the acting programs in no particular order."""
        return [entry[3] for heap in (self._settled, self._unsettled) for entry in heap.live.values()]

    def freed_by(self, program: Program) -> float:
        """Return the tokens that pausing a program frees, its buffer included."""
        return program.charge + self._buffer

    def mark(self, program: Program) -> None:
        """Note that a reasoning program is to be paused when its requests end."""
        program.is_marked = True
        self.update(program)

    def unmark(self, program: Program) -> None:
        """Withdraw the mark of a program."""
        program.is_marked = False
        self.update(program)

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
        idle = (program for program in self._acting() if program.acting_share <= _IDLE_SHARE)
        return sorted((program for program in idle if program.root.priority_class <= up_to), key=pause_order)

    def acting_programs(self) -> list[Program]:
        """Return the acting programs in the order of pauses."""
        return sorted(self._acting(), key=pause_order)

    def put_back(self, program: Program) -> None:
        """Put a program back that `take_acting` took."""
        self.update(program)

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
        self._check_heaps()

    def _check_sums(self) -> None:
        reasoning = sum(p.unshared_tokens for p in self.programs if p.is_busy)
        if self.reasoning_tokens != reasoning:
            raise InvariantError(f"backend {self.index}: reasoning tokens {self.reasoning_tokens} are not {reasoning}")
        acting = sum(p.charge for p in self.programs if not p.is_busy)
        if self.acting_charge != acting:
            raise InvariantError(f"backend {self.index}: charge {self.acting_charge} is not {acting}")

    def _check_marks(self) -> None:
        marked = [p for p in self.programs if p.is_marked]
        if {p.serial for _, p in self.marked} != {p.serial for p in marked}:
            raise InvariantError(f"backend {self.index}: marks differ")
        if self.marked_tokens != sum(int(p.charge) + self._buffer for p in marked):
            raise InvariantError(f"backend {self.index}: marked tokens {self.marked_tokens}")

    def _check_heaps(self) -> None:
        if len(self._settled) + len(self._unsettled) + len(self._reasoning) + len(self.marked) != self.num_programs:
            raise InvariantError(f"backend {self.index}: a program is in no heap, or in two")
        for heap in (self._settled, self._unsettled, self._reasoning):
            for order, program in heap:
                if order != pause_order(program):
                    raise InvariantError(f"backend {self.index}: {program.key} has a place that is not its own")


def pause_order(program: Program) -> PauseOrder:
    """Return the order in which programs are paused: lower classes, then smaller ones, then those that came first; a family is
    together, in the place of its root."""
    # The smallest first, because what is computed again costs the square of the tokens. A family is together, because a fork
    # waits for its slowest child.
    root = program if program.parent is None else program.root
    return (root.priority_class, root.tokens, root.serial, program.serial)


def _charge_of(share: float, tokens: int) -> float:
    # Multiples of 2^-10 add up without rounding, so the sums do not depend on the order of events, and a replay finds the same.
    return float(tokens) if share == 1 else round(share * tokens * 1024) / 1024
