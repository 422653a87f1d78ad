"""The backends that serve one model, and its programs that wait for them: who is paused, who is resumed, and where.

**Pause**, for a backend whose programs need more than its capacity: acting programs, smallest first, until what remains is
not negative. If that is not enough, reasoning programs are marked, smallest first, until what their ends will free covers
the rest; a mark that is not needed any more is withdrawn. A marked program is paused when its requests end, and only if
the pressure lasts.

**Resume**, where there is room. At a tick all waiting programs are considered together (`placement`). At an event (a request
has ended, a program was released, a capacity has changed) the first few are tried in order, which costs O(log n).

Three rules keep this fair and calm; the flavour `thunderagent` has none of them.

- *Headroom*: a program is placed beside others only if `headroom` of the capacity stays free.
- *Minimum stay*: a program that was resumed less than `min_stay_secs` ago is paused only if no other acting one is left.
- *Hold*: when the program that has waited longest has waited for more than `patience_secs` and does not fit, the backend
  with most room is held for it. Nothing else is placed there until it fits, so small programs cannot starve a large one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

from maitred.core.units import Micros, from_seconds
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.placement import Placement, Room, plan_resumes
from maitred.programs.program import Program
from maitred.programs.waiting_programs import WaitingPrograms

LOOKAHEAD: Final = 4
"""Waiting programs that are tried at an event."""
_MAX_ROUNDS: Final = 4
"""Times that the resume pass of a tick is repeated while it places programs."""


class ModelPool:
    """The backends and the waiting programs of one model. It plans; the core carries out."""

    def __init__(self, config: ProgramsConfig) -> None:
        self.backends: list[BackendMemory] = []
        self.set_config(config)
        self.waiting = WaitingPrograms(self._ageing)

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on; the order of what waits already stays."""
        self._config = config
        self._buffer = config.buffer_tokens
        self._headroom = 0.0 if config.is_strict else config.headroom
        self._min_stay = 0 if config.is_strict else from_seconds(config.min_stay_secs)
        self._patience = None if config.is_strict else from_seconds(config.patience_secs)
        # Seconds per 1,000 tokens are thousandths of a second per token: the factor from s to µs, divided by 1,000.
        self._ageing = None if config.is_strict else config.ageing_secs_per_1k_tokens * 1000

    def open_backends(self) -> list[BackendMemory]:
        """Return the backends where programs may be placed."""
        return [backend for backend in self.backends if backend.is_open]

    def room(self, backend: BackendMemory) -> float:
        """Return the tokens that a program may take at `backend`, its buffer included. A backend without programs has no
        headroom, or a program as large as the backend would never fit."""
        if not backend.num_programs or backend.capacity is None:
            return backend.remaining
        return backend.remaining - self._headroom * backend.capacity

    def is_oversized(self, program: Program) -> bool:
        """Return whether no backend, not even an empty one, could hold the program. False while a capacity is not known."""
        if self._config.is_strict or not self.backends:
            return False
        need = program.tokens + self._buffer
        return all(backend.capacity is not None and need > backend.capacity for backend in self.backends)

    def place_new(self, program: Program) -> BackendMemory | None:
        """Return the backend for a program that need not wait: of those with room the one with the fewest active tokens, the
        first of equals. None if none has room."""
        need = program.tokens + self._buffer
        fitting = [backend for backend in self.open_backends() if self.room(backend) >= need]
        parent = program.parent
        for backend in fitting:
            if parent is not None and parent.backend == backend.index:
                return backend
        return min(fitting, key=lambda backend: backend.active_tokens, default=None)

    def fewest_programs(self) -> BackendMemory | None:
        """Return the open backend with the fewest programs, the first of equals, or None if none is open."""
        return min(self.open_backends(), key=lambda backend: backend.num_programs, default=None)

    def most_room(self) -> BackendMemory | None:
        """Return the open backend that has most left, even if that is negative, or None if none is open."""
        return max(self.open_backends(), key=lambda backend: backend.remaining, default=None)

    def plan_all(self, now: Micros) -> Iterator[Placement]:
        """Yield which waiting programs fit where, for all that wait. The caller places each before it asks for the next, and
        the rest is planned again while anything was placed."""
        for _ in range(1 if self._config.is_strict else _MAX_ROUNDS):
            held = yield from self._serve_oldest(now)
            rooms = [Room(b.index, self.room(b)) for b in self.open_backends() if b is not held]
            placements = plan_resumes(self.waiting, rooms, self._buffer, is_strict=self._config.is_strict)
            yield from placements
            if not placements:
                return

    def plan_first(self, backends: Sequence[BackendMemory], now: Micros) -> Iterator[Placement]:
        """Yield which of the first waiting programs fit at one of `backends`, those where an event may have left room. The
        caller places each before it asks for the next."""
        held = yield from self._serve_oldest(now)
        open_backends = [backend for backend in backends if backend.is_open and backend is not held]
        passed_over: list[Program] = []
        while len(passed_over) < LOOKAHEAD and (smallest := self.waiting.smallest()) is not None:
            best = max(open_backends, key=self.room, default=None)
            # Most events leave no room at all: then one comparison is all they cost.
            if best is None or self.room(best) < smallest.tokens + self._buffer:
                break
            program = self.waiting.pop()
            if program.tokens + self._buffer <= self.room(best):
                yield Placement(program, best.index)
            else:
                passed_over.append(program)
        for program in passed_over:
            self.waiting.add(program)

    def _serve_oldest(self, now: Micros) -> Generator[Placement, None, BackendMemory | None]:
        """Yield the place of each program whose patience is at an end, oldest first. Return the backend that is held for the
        first one that does not fit, or None."""
        while self._patience is not None:
            oldest = self.waiting.oldest()
            if oldest is None or now - oldest.waiting_since < self._patience:
                return None
            best = max(self.open_backends(), key=self.room, default=None)
            if best is None or oldest.tokens + self._buffer > self.room(best):
                return best
            yield Placement(oldest, best.index)
        return None

    def plan_room_for_oldest(self, now: Micros) -> Iterator[Program]:
        """Yield the acting programs to be paused so that the program that has waited longest fits, if its patience is at an end
        and pausing them is enough. The caller pauses each before it asks for the next."""
        oldest = self.waiting.oldest()
        if self._patience is None or oldest is None or now - oldest.waiting_since < self._patience:
            return
        need = oldest.tokens + self._buffer
        best = max(self.open_backends(), key=lambda b: self.room(b) + b.acting_charge, default=None)
        if best is None or self.room(best) + best.acting_charge + self._buffer * best.num_acting < need:
            return
        while self.room(best) < need and (program := best.first_acting()) is not None:
            yield program

    def plan_pauses(self, backend: BackendMemory, now: Micros) -> Iterator[Program]:
        """Yield the acting programs to be paused at `backend`. The caller pauses each before it asks for the next."""
        stayed_briefly: list[Program] = []
        while backend.remaining < 0 and (program := backend.first_acting()) is not None:
            if program.resumed_at is not None and now - program.resumed_at < self._min_stay:
                stayed_briefly.append(backend.pop_acting())
            else:
                yield program
        for program in stayed_briefly:
            backend.put_back(program)
        while backend.remaining < 0 and (program := backend.first_acting()) is not None:
            yield program

    def plan_marks(self, backend: BackendMemory) -> tuple[Sequence[Program], Sequence[Program]]:
        """Return the reasoning programs to be marked at `backend`, and the marked ones that need not be."""
        excess = max(0.0, -backend.remaining)
        withdrawn = []
        covered = backend.marked_tokens
        for program in sorted(backend.marked.values(), key=lambda p: (-p.tokens, -p.serial)):
            freed = int(program.charge) + self._buffer
            if covered - freed >= excess:
                withdrawn.append(program)
                covered -= freed
        return self._new_marks(backend, excess - covered), withdrawn

    def _new_marks(self, backend: BackendMemory, missing: float) -> Sequence[Program]:
        marks: list[Program] = []
        while missing > 0 and (program := backend.first_reasoning()) is not None:
            backend.mark(program)
            missing -= int(program.charge) + self._buffer
            marks.append(program)
        return marks
