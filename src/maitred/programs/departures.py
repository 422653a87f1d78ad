"""Programs that leave: their backend, because it is down, drained or serves their model no more; the queue, because their
client has gone, or they waited too long; the tables, because they were idle too long.

A program leaves a backend between two requests. While some are under way, further ones wait for those to end: they must not
follow them to a backend that is going, and cannot go elsewhere, because a program is at one backend. If the backend is well
again before that, they go there after all.

Example: backend 0 is drained while request 1 of a program is under way there. Request 2 of the program comes and waits. When
request 1 ends, the program is paused, and resumed with request 2 at another backend that has room.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.core.request import RequestId
from maitred.core.units import Micros, from_seconds
from maitred.programs.agenda import Agenda
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import ProgramReason
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program
from maitred.programs.program_table import ProgramTable


class Departures:
    """The departures of the programs of one core."""

    def __init__(self, config: ProgramsConfig, places: ProgramPlaces, table: ProgramTable, agenda: Agenda) -> None:
        self._places = places
        self._backends = places.backends
        self._table = table
        self._agenda = agenda
        self.set_config(config)

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on."""
        self._mode = config.mode
        self._ttl = from_seconds(config.program_ttl_secs)

    def settle_places(self, backend: BackendMemory, now: Micros) -> None:
        """After a change of what may be done with a backend: idle programs leave it if they must; if they need not any more,
        the requests go that have waited for that."""
        for program in list(backend.programs):
            reason = backend.reason_to_leave(program)
            if reason is None:
                if program.waiting:
                    self._places.start(program, backend, self._places.stop_waiting(program), now)
            elif not program.contexts:
                self._places.lose_place(program, reason, now)

    def move_on(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """The last request of a program has ended at a backend that it must leave, and others wait for that."""
        self._places.lose_place(program, reason, now)
        pool = self._backends.pool(program.key.model)
        if not pool.backends:
            self.refuse_waiting(program, ProgramReason.NO_BACKEND, now)
        elif self._mode == "default":
            self._places.resume(program, pool.fewest_programs() or pool.backends[0], ProgramReason.PLACED, now)
        elif pool.is_oversized(program.tokens):
            self.refuse_waiting(program, ProgramReason.OVERSIZED, now)
        else:
            self._agenda.note_wanting(pool, pool.backends)

    def leave_queue(self, program: Program, request_id: RequestId, now: Micros) -> None:
        """A waiting request has been left by its client: its place in the queue is free at once."""
        self._places.stop_waiting(program, request_id)
        self._go_on_without(program, now)

    def refuse_waiting(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Refuse all requests of a program that wait."""
        self._places.refuse_waiting(program, reason, now)
        self._go_on_without(program, now)

    def _go_on_without(self, program: Program, now: Micros) -> None:
        """Settle what becomes of a program of which requests have left the queue."""
        if not program.is_busy:
            program.acting_since = now
        self._places.update(program)
        if program.backend is None:  # else others of it are under way, and hold the place
            self.settle_idle(program, now)
            pool = self._backends.pool(program.key.model)
            self._agenda.note_wanting(pool, pool.backends)

    def end_wait(self, program: Program, now: Micros) -> None:
        """Resume a program that has waited too long, whether it fits or not."""
        backend = self._backends.pool(program.key.model).most_room() if program.backend is None else None
        if backend is not None:
            self._places.resume(program, backend, ProgramReason.MAX_WAIT, now)
        else:
            self.refuse_waiting(program, ProgramReason.NO_BACKEND, now)

    def settle_idle(self, program: Program, now: Micros) -> None:
        """Start the time after which an idle program is forgotten. One without an id is at once, and one that never had a
        place."""
        if program.contexts or program.waiting:
            return
        if program.is_anonymous or program.resumed_at is None:
            self._places.forget(program, ProgramReason.ENDED, now)
        else:
            self._table.note_idle(program, now, now + self._ttl)

    def expire(self, program: Program, now: Micros) -> None:
        """Forget a program that was idle for too long; one with children is idle only if they are."""
        # A parent shares its context with its children, so it is kept as long as one of them may come back.
        family = program.descendants()
        active_at = now if any(p.is_busy for p in family) else max((p.last_active for p in family), default=program.last_active)
        expires_at = active_at + self._ttl
        if expires_at > now:
            self._table.by_expiry.push(program.serial, expires_at, program)
            return
        self.forget(program, ProgramReason.EXPIRED, now)

    def forget(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Forget a program, whatever it does. Others may have its place."""
        backend = self._backends.find(program.backend)
        self._places.forget(program, reason, now)
        if backend is not None:
            self._agenda.note_change(backend)

    def find_oversized(self, backend: BackendMemory) -> Sequence[Program]:
        """Return the programs with requests that wait and are larger than any backend of their models, now that `backend` has
        another capacity."""
        pools = self._backends.pools_of(backend)
        return [program for pool in pools for program in pool.paused if program.waiting and pool.is_oversized(program.tokens)]
