"""The backends that serve one model, and its programs that wait for them: which are paused, which are resumed, and where.

**Pause**, for a backend whose programs need more than its capacity: acting programs, smallest first, until what remains is
not negative. If that is not enough, reasoning programs are marked, smallest first, until what their ends will free covers
the rest; a mark that is not needed any more is withdrawn. A marked program is paused when its requests end, and only if
the pressure lasts.

**Resume**, where there is room. At a tick all waiting programs are considered together (`placement`). At an event (a request
has ended, a program was released, a capacity has changed) the first few are tried in order, which costs O(log n).

Six rules keep this fair and calm; the flavour `thunderagent` has none of them.

- *Headroom*: a program is placed beside others only if `headroom` of the capacity stays free.
- *Minimum stay*: a program that was placed less than `min_stay_secs` ago is paused only if no other acting one is left.
- *No pause in vain*: of the programs that free enough together, smallest first, each is spared without which the others
  still free enough. 1,400 tokens are missing, and programs of 1,000 and 2,000 act: the first two in order, 1,100 and 2,100 with
  their buffers, free enough, and the second one does so alone. Without this rule the first one would be paused and, as its
  memory is not needed, be resumed at once.
- *Hold*: when the program that has waited longest has waited for more than `patience_secs` and does not fit, the backend
  with most room is held for it. Nothing else is placed there until it fits, so small programs cannot starve a large one.
- *Displacement*: a tick at which it has waited for more than `displace_secs` pauses acting programs for it, but none of a
  higher class. What they had in memory must be computed again, and with more programs than fit, one always waits: so this is
  only for programs that no end of another one will let in. A program of which the estimator counts hardly anything any more has
  most likely ended: it makes room at any tick.

- *Turn*: of the programs that have waited for `patience_secs`, that of the tenant that holds the fewest tokens is next. If it
  does not fit, acting programs of other tenants give way to it, one after another as they end their requests, as long as their
  tenant keeps what the waiting one would then hold; a tenant that holds nothing is given way by all. So no tenant keeps another
  waiting, neither with idle programs nor with programs that ask again at once.

Whatever these find, a request waits for `max_wait_secs` at most: then its program is resumed without room (`departures`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from maitred.core.units import Micros, from_seconds
from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.backend_memory import BackendMemory, pause_order
from maitred.programs.config import ProgramsConfig
from maitred.programs.placement import Placement, ResumeCandidate, Room, plan_resumes
from maitred.programs.program import Program
from maitred.programs.token_estimator import FIRST_RATIO
from maitred.programs.waiting_programs import WaitingPrograms

LOOKAHEAD: Final = 4
"""Waiting programs that are tried at an event."""


class TenantClaim(NamedTuple):
    """What the program whose turn it is lacks where most room is, and may get from other tenants."""

    program: Program
    backend: BackendMemory
    missing: float
    """Tokens that must become free."""
    spared: float
    """Tokens that a tenant keeps at least when it gives way."""


class ModelPool:
    """The backends and the waiting programs of one model. It plans; the core carries out."""

    def __init__(self, config: ProgramsConfig, estimator: ActingEstimator, held: Mapping[str, float] | None = None) -> None:
        """`held`: the charged tokens of each tenant that has some."""
        self._held: Mapping[str, float] = {} if held is None else held
        self.backends: list[BackendMemory] = []
        self.open_backends: list[BackendMemory] = []
        """The backends where programs may be placed."""
        self.waiting = WaitingPrograms(None)
        self._estimator = estimator
        self.set_config(config)

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on."""
        self._rules = rules = config.rules
        self._buffer = config.buffer_tokens
        self._headroom = config.headroom if rules.keeps_headroom else 0.0
        self._patience = from_seconds(config.patience_secs) if rules.bounds_waiting else None
        self._displace_after = from_seconds(config.displace_secs) if rules.bounds_waiting else None
        # Seconds per 1,000 tokens are thousandths of a second per token: the factor from s to µs, divided by 1,000.
        self.waiting.set_ageing(config.ageing_secs_per_1k_tokens * 1000 if rules.bounds_waiting else None)

    def set_backends(self, backends: list[BackendMemory]) -> None:
        """Note which backends serve the model now."""
        self.backends = backends
        self.note_status()

    def note_status(self) -> None:
        """Note that the status of a backend has changed."""
        self.open_backends = [backend for backend in self.backends if backend.is_open]

    def room(self, backend: BackendMemory) -> float:
        """Return the tokens that a program may take at `backend`, its buffer included. A backend without programs has no
        headroom, or a program as large as the backend would never fit."""
        capacity = backend.capacity
        if capacity is None or not backend.num_programs:
            return backend.remaining
        return capacity - backend.used - self._headroom * capacity

    def need(self, program: Program, now: Micros) -> int:
        """Return the tokens that a paused program needs at a backend, buffer included. One without a request is resumed as an
        acting one, and an estimator may charge more than its tokens for that."""
        if program.waiting or not self._rules.charges_acting_share:
            return program.tokens + self._buffer
        share = self._estimator.share(now - program.acting_since, program.tools)
        return (ceil(share * program.tokens) if share > 1 else program.tokens) + self._buffer

    def is_oversized(self, tokens: int) -> bool:
        """Return whether no backend, not even an empty one, could hold a program of `tokens`. False while a capacity is not
        known."""
        if not self._rules.refuses_oversized or not self.backends:
            return False
        need = tokens + self._buffer
        return all(backend.capacity is not None and need > backend.capacity for backend in self.backends)

    def believable_tokens(self, tokens: int, characters: int | None) -> int:
        """Return the tokens of a request, at most what the largest backend holds if only a learned ratio says that it is
        larger: its `characters` alone do not. A refused request teaches nothing, so one odd answer would have all larger
        requests refused for ever."""
        if characters is None or not self.is_oversized(tokens) or self.is_oversized(int(characters / FIRST_RATIO)):
            return tokens
        return max((backend.capacity - self._buffer for backend in self.backends if backend.capacity is not None), default=0)

    def place_new(self, program: Program, tokens: int) -> BackendMemory | None:
        """Return the backend for a program of `tokens` that need not wait: of those with room that of its parent, or the one
        with the fewest active tokens, the first of equals. None if none has room."""
        need = tokens + self._buffer
        fitting = [backend for backend in self.open_backends if self.room(backend) >= need]
        parent = program.parent
        for backend in fitting:
            if parent is not None and parent.backend == backend.index:
                return backend
        return min(fitting, key=lambda backend: backend.active_tokens, default=None)

    def fewest_programs(self, but: BackendMemory | None = None) -> BackendMemory | None:
        """Return the open backend with the fewest programs, the first of equals, without `but`; None if none is open."""
        backends = (backend for backend in self.open_backends if backend is not but)
        return min(backends, key=lambda backend: backend.num_programs, default=None)

    def most_room(self) -> BackendMemory | None:
        """Return the open backend that has most left, even if that is negative, or None if none is open."""
        return max(self.open_backends, key=lambda backend: (backend.remaining, -backend.active_tokens), default=None)

    def _with_most_room(self, backends: Sequence[BackendMemory]) -> BackendMemory | None:
        """Return the one of `backends` with most room for a new program, or None if there are none."""
        if len(backends) == 1:
            return backends[0]
        return max(backends, key=lambda backend: (self.room(backend), -backend.active_tokens), default=None)

    def plan_all(self, now: Micros) -> Iterator[Placement]:
        """Yield which waiting programs fit where, for all that wait. The caller places each before it asks for the next, and
        the rest is planned again while anything was placed."""
        candidates: list[ResumeCandidate] | None = None
        for _ in range(self._rules.resume_rounds):
            held = yield from self._serve_oldest(now)
            rooms = self._rooms_beside(held)
            smallest = self.waiting.smallest()
            # Usually no room is left for any: then nothing need be sorted.
            if smallest is None or not rooms or max(room.tokens for room in rooms) < smallest.tokens + self._buffer:
                return
            # Sorting all that wait is the dearest part of a tick. Later rounds only leave out those that have been placed.
            if candidates is None:
                candidates = [ResumeCandidate(program, self.need(program, now)) for program in self.waiting]
            else:
                candidates = [candidate for candidate in candidates if candidate.program in self.waiting]
            placements = plan_resumes(candidates, rooms, by_class=self._rules.places_by_class)
            yield from placements
            if not placements:
                return

    def _rooms_beside(self, held: BackendMemory | None) -> list[Room]:
        """Return what the open backends but `held` have left, where that is more than a buffer."""
        rooms = (Room(b.index, self.room(b), b.active_tokens) for b in self.open_backends if b is not held)
        return [room for room in rooms if room.tokens > self._buffer]

    def plan_first(self, backends: Sequence[BackendMemory], now: Micros) -> Iterator[Placement]:
        """Yield which of the first waiting programs fit at one of `backends`, those where an event may have left room. The
        caller places each before it asks for the next."""
        held = yield from self._serve_oldest(now)
        open_backends = [backend for backend in backends if backend.is_open and backend is not held]
        best = self._with_most_room(open_backends)
        # Most events leave no room at all: then one comparison is all they cost.
        while best is not None and self._has_room_for_smallest(best):
            room = self.room(best)
            program = next((p for p in self.waiting.first(LOOKAHEAD) if self.need(p, now) <= room), None)
            if program is None:
                return
            yield Placement(program, best.index)
            best = self._with_most_room(open_backends)

    def _has_room_for_smallest(self, backend: BackendMemory) -> bool:
        smallest = self.waiting.smallest()
        return smallest is not None and self.room(backend) >= smallest.tokens + self._buffer

    def _serve_oldest(self, now: Micros) -> Generator[Placement, None, BackendMemory | None]:
        """Yield a place for each program that has waited for `patience_secs`, oldest first. Return the backend that is held for
        the first one that does not fit, or None."""
        while (oldest := self._waits_too_long(self._patience, now)) is not None:
            best = self._with_most_room(self.open_backends)
            if best is None or oldest.tokens + self._buffer > self.room(best):
                return best
            yield Placement(oldest, best.index)
        return None

    def _waits_too_long(self, limit: Micros | None, now: Micros) -> Program | None:
        """Return the program whose turn it is of those that have waited for `limit` or more, or None."""
        return None if limit is None else self.waiting.overdue(now - limit, self._held)

    def plan_room_for_oldest(self, now: Micros) -> Sequence[Program]:
        """Return the acting programs to be paused so that the program that has waited longest fits, if it has waited for
        `displace_secs` and pausing them is enough; of all backends, at the one with most to give."""
        oldest = self._waits_too_long(self._displace_after, now)
        if oldest is None:
            return ()
        need = oldest.tokens + self._buffer
        # Programs are paused at one backend only, so the one at which most could become free is tried, and no other.
        best = max(self.open_backends, key=lambda b: self.room(b) + b.acting_charge, default=None)
        if best is None or self.room(best) >= need:
            return ()
        best.settle(now)
        missing = need - self.room(best)
        victims = best.take_acting(missing, settled=True, up_to=oldest.root.priority_class)
        if sum(map(best.freed_by, victims)) >= missing:
            return self._spare(best, victims, missing)
        # Headroom is not asked for at an empty backend.
        if len(victims) == best.num_programs and need <= (best.capacity or 0):
            return victims
        for program in victims:
            best.put_back(program)
        return ()

    def plan_idle(self, now: Micros) -> Sequence[Program]:
        """Return the idle programs of the backend with most room without which the program that has waited longest, for any
        time, fits there; none of a higher class than that."""
        oldest = self._waits_too_long(0, now) if self._rules.bounds_waiting else None
        best = self._with_most_room(self.open_backends)
        if oldest is None or best is None:
            return ()
        missing = oldest.tokens + self._buffer - self.room(best)
        victims, freed = list[Program](), 0.0
        for program in best.idle_programs(oldest.root.priority_class) if missing > 0 else ():
            if freed < missing:
                victims.append(program)
                freed += best.freed_by(program)
        return self._spare(best, victims, missing) if freed >= missing else ()

    def _claim(self, now: Micros) -> TenantClaim | None:
        """Return the claim of the program that has waited for `patience_secs` and whose turn it is, or None if no other tenants
        hold what it lacks."""
        claimant = self._waits_too_long(self._patience, now)
        best = self._with_most_room(self.open_backends)
        if claimant is None or best is None:
            return None
        need = claimant.tokens + self._buffer
        missing = need - self.room(best)
        if missing <= 0 or (best.capacity is not None and need > best.capacity):
            return None
        tenant = claimant.key.tenant
        own = self._held.get(tenant, 0.0)
        spared = own + need if own else 0.0
        # A tenant that holds nothing gets all that it needs. Another one gets what others have more than it would have.
        others = sum(max(0.0, tokens - spared) for name, tokens in self._held.items() if name != tenant)
        return TenantClaim(claimant, best, missing, spared) if not own or others >= missing else None

    def _gives_way(self, program: Program, claim: TenantClaim, given: float, now: Micros) -> bool:
        """Return whether an acting program at the backend of a claim is to be paused for it, when its tenant has `given` tokens
        already."""
        tenant = program.key.tenant
        return (
            tenant != claim.program.key.tenant
            and program.settles_at <= now
            and program.root.priority_class <= claim.program.root.priority_class
            and self._held.get(tenant, 0.0) - given - program.charge >= claim.spared
        )

    def gives_way(self, program: Program, backend: BackendMemory, now: Micros) -> bool:
        """Return whether a program that has just begun to act at `backend` is to be paused for another tenant."""
        claim = self._claim(now) if len(self.waiting) else None
        return claim is not None and claim.backend is backend and self._gives_way(program, claim, 0.0, now)

    def plan_giving_way(self, now: Micros) -> Sequence[Program]:
        """Return the acting programs to be paused for the tenant whose turn it is. They may be too few: those that reason now
        follow when they act (`gives_way`), and the backend is held meanwhile."""
        claim = self._claim(now)
        if claim is None:
            return ()
        victims, given, missing = list[Program](), dict[str, float](), claim.missing
        for program in claim.backend.acting_programs():
            tenant = program.key.tenant
            if missing > 0 and self._gives_way(program, claim, given.get(tenant, 0.0), now):
                victims.append(program)
                given[tenant] = given.get(tenant, 0.0) + program.charge
                missing -= claim.backend.freed_by(program)
        return victims if missing > 0 else self._spare(claim.backend, victims, claim.missing)

    def plan_pauses(self, backend: BackendMemory, now: Micros) -> Sequence[Program]:
        """Return the acting programs to be paused at `backend` first. They may free less than is missing, because the children
        of a paused program share less: so the caller asks again."""
        missing = -backend.remaining
        backend.settle(now)
        # Those that have just been placed come last (minimum stay).
        settled = backend.take_acting(missing, settled=True)
        missing_still = missing - sum(map(backend.freed_by, settled))
        if missing_still <= 0:
            return self._spare(backend, settled, missing)
        unsettled = backend.take_acting(missing_still, settled=False)
        return [*settled, *self._spare(backend, unsettled, missing_still)]

    def _spare(self, backend: BackendMemory, victims: Sequence[Program], missing: float) -> Sequence[Program]:
        """Return those of `victims` that must be paused to free `missing` tokens; put the others back. Only programs of the
        class of the last one are spared: one of a lower class never stays while one of a higher class goes."""
        if not self._rules.spares_victims:
            return victims
        spare = sum(map(backend.freed_by, victims)) - missing
        kept = []
        for program in victims:
            freed = backend.freed_by(program)
            if freed <= spare and program.root.priority_class == victims[-1].root.priority_class:
                spare -= freed
                backend.put_back(program)
            else:
                kept.append(program)
        return kept

    def plan_marks(self, backend: BackendMemory) -> tuple[Sequence[Program], Sequence[Program]]:
        """Return the programs to mark at `backend`, and the marked ones that need not be, last in the order of pauses first."""
        excess = max(0.0, -backend.remaining)
        withdrawn = []
        covered = backend.marked_tokens
        # Usually no mark can be withdrawn, and looking at the smallest one tells: then nothing is sorted.
        smallest = backend.smallest_mark()
        if smallest is not None and covered - backend.freed_by(smallest) >= excess:
            for program in sorted(backend.marked.values(), key=pause_order, reverse=True):
                freed = int(backend.freed_by(program))
                if covered - freed >= excess:
                    withdrawn.append(program)
                    covered -= freed
        return self._new_marks(backend, excess - covered), withdrawn

    def _new_marks(self, backend: BackendMemory, missing: float) -> Sequence[Program]:
        marks: list[Program] = []
        while missing > 0 and (program := backend.first_reasoning()) is not None:
            backend.mark(program)
            missing -= backend.freed_by(program)
            marks.append(program)
        return marks
