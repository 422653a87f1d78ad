"""The backends that serve one model, and its paused programs: which are resumed, where, and which others are paused for them.

Programs are resumed where there is room. At a tick all that are paused are considered together (`plan_all`). At an event the
first few are tried in order, which costs O(log n) (`plan_first`).

Small programs fit where a large one does not, and those of a tenant that asks at once take what has become free. So a program
that has waited for long is served before others, by means that grow with the time; the flavour `thunderagent` has none of them:

    hold            after `patience_secs` the backend with most room is kept for it (`_serve_oldest`)
    turn            after `patience_secs` programs of tenants that hold more give way to it (`_claim`)
    displacement    at a tick programs whose tools take very long make room for it (`plan_idle`); after `displace_secs` any that
                    act (`plan_room_for_oldest`)
    force           after `max_wait_secs` it is resumed without room (`departures`)

Example: a has 3,000 tokens and waits for a backend of 10,000, in which eight programs of 1,000 take turns to act and reason.
With buffers of 100 these use 8,800, and a headroom of 5 % leaves 700; a needs 3,100. Each that ends would let in another one of
1,000. Once a has waited for 10 s, the first 2,400 that become free are kept for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from maitred.core.units import Micros, from_seconds
from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.paused_programs import PausedPrograms
from maitred.programs.placement import PlannedResume, ResumeCandidate, Room, plan_resumes
from maitred.programs.program import Program, TenantPrograms
from maitred.programs.token_estimator import FIRST_RATIO
from maitred.programs.victims import spare

LOOKAHEAD: Final = 4
"""Paused programs that are tried at an event. The first one alone would keep a small one behind it out; all of them would have
to be sorted."""


class TenantClaim(NamedTuple):
    """The claim of the program whose turn it is to tokens that other tenants hold at the backend with most room."""

    program: Program
    backend: BackendMemory
    missing: float
    """Tokens that must become free."""
    spared: float
    """Tokens that a tenant keeps at least when it gives way."""


class ModelPool:
    """The backends and the paused programs of one model. It plans; `Passes` carries out."""

    def __init__(self, config: ProgramsConfig, estimator: ActingEstimator, holding: Mapping[str, TenantPrograms]) -> None:
        """`holding`: the tenants whose programs have a place at some backend, of whichever model."""
        self._holding = holding
        self.backends: list[BackendMemory] = []
        self.open_backends: list[BackendMemory] = []
        """The backends where programs may be placed."""
        self.paused = PausedPrograms(None)
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
        self.paused.set_ageing(config.ageing_secs_per_1k_tokens * 1000 if rules.bounds_waiting else None)

    def set_backends(self, backends: list[BackendMemory]) -> None:
        """Note which backends serve the model now."""
        self.backends = backends
        self.note_status()

    def note_status(self) -> None:
        """Note that the status of a backend has changed."""
        self.open_backends = [backend for backend in self.backends if backend.is_open]

    def room(self, backend: BackendMemory) -> float:
        """Return the tokens that a program may take at `backend`, its buffer included."""
        capacity = backend.capacity
        # At an empty backend nothing is kept as headroom, or a program as large as the backend would never fit.
        if capacity is None or not backend.num_programs:
            return backend.remaining
        # Programs grow with their answers. Without headroom the next ones would have one paused that was just let in.
        return capacity - backend.used - self._headroom * capacity

    def need(self, program: Program, now: Micros) -> int:
        """Return the tokens that a paused program needs at a backend, buffer included."""
        if program.waiting or not self._rules.charges_acting_share:
            return program.tokens + self._buffer
        # It is resumed as an acting one. An estimator may charge more than its tokens for that: it would be paused at once. One
        # that charges less may charge more tomorrow, so its tokens are the least.
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
        larger: its `characters` alone do not."""
        # A refused request teaches nothing. So a ratio learned from one odd answer would have all larger ones refused for ever.
        if characters is None or not self.is_oversized(tokens) or self.is_oversized(int(characters / FIRST_RATIO)):
            return tokens
        return max((backend.capacity - self._buffer for backend in self.backends if backend.capacity is not None), default=0)

    def place_new(self, program: Program, tokens: int) -> BackendMemory | None:
        """Return the backend for a program of `tokens` that need not wait: of those with room that of its parent, or the one
        with the fewest active tokens, the first of equals. None if none has room."""
        # Beside its parent, because what both share is in memory there.
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

    def plan_all(self, now: Micros) -> Iterator[PlannedResume]:
        """Yield which waiting programs fit where, for all that wait. The caller places each before it asks for the next, and
        the rest is planned again while anything was placed."""
        candidates: list[ResumeCandidate] | None = None
        # One that the sum of all rooms allowed, and that finds none large enough, has kept others out. In the next round, with
        # smaller rooms, it is passed over. Mostly that places nothing, which ends the rounds.
        for _ in range(self._rules.resume_rounds):
            held = yield from self._serve_oldest(now)
            rooms = self._rooms_beside(held)
            smallest = self.paused.smallest()
            # Usually no room is left for any: then nothing need be sorted.
            if smallest is None or not rooms or max(room.tokens for room in rooms) < smallest.tokens + self._buffer:
                return
            # Sorting all that wait is the dearest part of a tick. Later rounds only leave out those that have been placed.
            if candidates is None:
                candidates = [ResumeCandidate(program, self.need(program, now)) for program in self.paused]
            else:
                candidates = [candidate for candidate in candidates if candidate.program.backend is None]
            placements = plan_resumes(candidates, rooms, by_class=self._rules.places_by_class)
            oldest = self.paused.oldest()
            for placement in placements:
                # When the oldest one has been placed, it may be the turn of one of a lower class that has waited for long.
                if held is None and oldest is not None and oldest.backend is not None:
                    if self._waits_too_long(self._patience, now) is not None:
                        break
                    oldest = self.paused.oldest()
                yield placement
            if not placements:
                return

    def _rooms_beside(self, held: BackendMemory | None) -> list[Room]:
        """Return the rooms at the open backends but `held`, where more than a buffer is left."""
        rooms = (Room(b.index, self.room(b), b.active_tokens) for b in self.open_backends if b is not held)
        return [room for room in rooms if room.tokens > self._buffer]

    def plan_first(self, backends: Sequence[BackendMemory], now: Micros) -> Iterator[PlannedResume]:
        """Yield which of the first waiting programs fit at one of `backends`, those where an event may have left room. The
        caller places each before it asks for the next."""
        while True:
            # Asked each time: behind one of a higher class it may be the turn of one that has waited for long.
            held = yield from self._serve_oldest(now)
            best = self._with_most_room([backend for backend in backends if backend.is_open and backend is not held])
            # Most events leave no room at all: then one comparison is all they cost.
            if best is None or not self._has_room_for_smallest(best):
                return
            program = self._first_fitting(self.room(best), now)
            if program is None:
                return
            yield PlannedResume(program, best.index)

    def _first_fitting(self, room: float, now: Micros) -> Program | None:
        return self.paused.first(LOOKAHEAD, lambda program: self.need(program, now) <= room)

    def _has_room_for_smallest(self, backend: BackendMemory) -> bool:
        smallest = self.paused.smallest()
        return smallest is not None and self.room(backend) >= smallest.tokens + self._buffer

    def _serve_oldest(self, now: Micros) -> Generator[PlannedResume, None, BackendMemory | None]:
        """Yield a place for each program that has waited for `patience_secs`, oldest first. Return the backend that is held for
        the first one that does not fit, or None."""
        # Nothing else is placed at that backend until this one fits: what small programs leave there adds up. The other
        # backends go on, as the one with most room is the one where it fits first, if their programs end alike.
        while (oldest := self._waits_too_long(self._patience, now)) is not None:
            best = self._with_most_room(self.open_backends)
            if best is None or oldest.tokens + self._buffer > self.room(best):
                return best
            yield PlannedResume(oldest, best.index)
        return None

    def _waits_too_long(self, limit: Micros | None, now: Micros) -> Program | None:
        """Return the program whose turn it is of those that have waited for `limit` or more, or None."""
        return None if limit is None else self.paused.overdue(now - limit)

    def plan_room_for_oldest(self, now: Micros) -> Sequence[Program]:
        """Return the acting programs to be paused so that the program that has waited longest fits, if it has waited for
        `displace_secs` and pausing them is enough; of all backends, at the one with most to give."""
        # What these have in memory must be computed again, and with more programs than fit one always waits: so this is only
        # for a program that no end of another one has let in for minutes.
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
            return spare(best, victims, missing)
        # Headroom is not asked for at an empty backend.
        if len(victims) == best.num_programs and need <= (best.capacity or 0):
            return victims
        for program in victims:
            best.put_back(program)
        return ()

    def plan_idle(self, now: Micros) -> Sequence[Program]:
        """Return the idle programs of the backend with most room without which the program that has waited longest, for any
        time, fits there; none of a higher class than that."""
        # The estimator counts hardly anything of them: most likely they have ended without saying so, and nothing is lost.
        oldest = self._waits_too_long(0, now) if self._rules.bounds_waiting else None
        best = None if oldest is None else self._with_most_room(self.open_backends)
        if oldest is None or best is None:
            return ()
        missing = oldest.tokens + self._buffer - self.room(best)
        victims: list[Program] = []
        freed = 0.0
        for program in best.idle_programs(oldest.root.priority_class) if missing > 0 else ():
            if freed < missing:
                victims.append(program)
                freed += best.freed_by(program)
        return spare(best, victims, missing) if freed >= missing else ()

    def _claim(self, now: Micros) -> TenantClaim | None:
        """Return the claim of the program that has waited for `patience_secs` and whose turn it is, or None if no other tenants
        hold what it lacks."""
        # A hold keeps what becomes free, and a tenant whose programs ask again at once lets nothing become free. A fixed share
        # for each tenant would lie idle while the tenant does.
        claimant = self._waits_too_long(self._patience, now)
        if claimant is None or len(self._holding) <= (claimant.of_tenant.num_placed > 0):
            return None
        best = self._with_most_room(self.open_backends)
        if best is None:
            return None
        need = claimant.tokens + self._buffer
        missing = need - self.room(best)
        if missing <= 0 or (best.capacity is not None and need > best.capacity):
            return None
        own = claimant.of_tenant.held_tokens
        if not own:  # A tenant that holds nothing gets all that it needs.
            return TenantClaim(claimant, best, missing, 0.0)
        spared = own + need  # Another one gets what others have more than it would have.
        tenants = (tenant for tenant in self._holding.values() if tenant is not claimant.of_tenant)
        others = sum(max(0.0, tenant.held_tokens - spared) for tenant in tenants)
        return TenantClaim(claimant, best, missing, spared) if others >= missing else None

    def _gives_way(self, program: Program, claim: TenantClaim, given: float, now: Micros) -> bool:
        """Return whether an acting program at the backend of a claim is to be paused for it, when its tenant has `given` tokens
        already."""
        return (
            program.of_tenant is not claim.program.of_tenant
            and program.settles_at <= now
            and program.root.priority_class <= claim.program.root.priority_class
            and program.of_tenant.held_tokens - given - program.charge >= claim.spared
        )

    def gives_way(self, program: Program, backend: BackendMemory, now: Micros) -> bool:
        """Return whether a program that has just begun to act at `backend` is to be paused for another tenant."""
        claim = self._claim(now) if self.paused.serials else None
        return claim is not None and claim.backend is backend and self._gives_way(program, claim, 0.0, now)

    def plan_giving_way(self, now: Micros) -> Sequence[Program]:
        """Return the acting programs to be paused for the tenant whose turn it is. They may be too few: those that reason now
        follow when they act (`gives_way`), and the backend is held meanwhile."""
        claim = self._claim(now)
        if claim is None:
            return ()
        victims: list[Program] = []
        given: dict[str, float] = {}
        missing = claim.missing
        for program in claim.backend.acting_programs():
            tenant = program.key.tenant
            if missing > 0 and self._gives_way(program, claim, given.get(tenant, 0.0), now):
                victims.append(program)
                given[tenant] = given.get(tenant, 0.0) + program.charge
                missing -= claim.backend.freed_by(program)
        return victims if missing > 0 else spare(claim.backend, victims, claim.missing)
