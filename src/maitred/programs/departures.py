"""Programs that leave: their backend, because it is down, drained or serves their model no more; the queue, because their
client has gone, or they waited too long; the tables, because they were idle too long.

A program leaves a backend between two requests. While some are under way, further ones wait for those to end: they must not
follow them to a backend that is going, and cannot go elsewhere, because a program is at one backend. If the backend is well
again before that, they go there after all.

Example: backend 0 is drained while request 1 of a program is under way there. Request 2 of the program comes and waits. When
request 1 ends, the program is paused, and resumed with request 2 at another backend that has room.
"""

from __future__ import annotations

from collections.abc import Collection

from maitred.core.request import RequestId
from maitred.core.units import Micros, from_seconds
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import ProgramAction, ProgramReason, ProgramState, ProgramStatus
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program
from maitred.programs.program_table import ProgramTable


class Departures:
    """The departures of the programs of one core."""

    def __init__(self, config: ProgramsConfig, places: ProgramPlaces, table: ProgramTable) -> None:
        self._places = places
        self._table = table
        self.set_config(config)

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on."""
        self._mode = config.mode
        self._ttl = from_seconds(config.program_ttl_secs)

    def settle_places(self, backend: BackendMemory, now: Micros) -> None:
        """After a change of what may be done with a backend: idle programs leave it if they must; if they need not any more,
        the requests go that have waited for that."""
        for program in list(backend.programs):
            reason = self._places.backends.reason_to_leave(program)
            if reason is None:
                self._places.grant_waiting(program, backend, ProgramReason.STICKY, now)
            elif not program.contexts:
                self._places.lose_place(program, reason, now)

    def wait_for_others(self, program: Program, request_id: RequestId, tokens: int, now: Micros) -> None:
        """Let a request wait until the program's others have ended at a backend that it must leave. It must not follow them
        there, and cannot go elsewhere: a program is at one backend."""
        assert program.backend is not None, "others are under way at a backend"
        self._places.wait(program, request_id, tokens, now)
        program.update_tokens()
        self._places.reorder(program)
        self._places.reorder_family(program)
        reason = self._places.backends.reason_to_leave(program) or ProgramReason.DRAINED
        self._places.decide(now, program, ProgramAction.WAIT, reason, request_id)

    def move_on(self, program: Program, now: Micros) -> None:
        """The last request of a program has ended at a backend that it must leave, and others wait for that."""
        self._places.lose_place(program, self._places.backends.reason_to_leave(program) or ProgramReason.DRAINED, now)
        pool = self._places.backends.pool(program.key.model)
        if not pool.backends:
            self.refuse_waiting(program, ProgramReason.NO_BACKEND, now)
        elif self._mode == "default":
            self._places.resume(program, pool.fewest_programs() or pool.backends[0], ProgramReason.PLACED, now)
        elif pool.is_oversized(program.tokens):
            self.refuse_waiting(program, ProgramReason.OVERSIZED, now)
        else:
            self._places.react_to_room(pool, pool.backends, now)

    def leave_queue(self, program: Program, request_ids: Collection[RequestId], now: Micros) -> None:
        """Waiting requests have been left by their clients, or refused: their place is free at once."""
        for request_id in request_ids:
            del program.waiting[request_id]
        self._places.num_waiting -= len(request_ids)
        if not program.waiting:
            self._places.waits.remove(program.serial)
        if program.backend is not None:  # it waited for others of its program, which hold the place
            self._places.reorder_family(program)
            return
        program.tokens = program.waiting_tokens if program.waiting else program.idle_contexts.last
        pool = self._places.backends.pool(program.key.model)
        if not program.waiting:
            program.status = ProgramStatus.ACTING
            program.acting_since = now
        if not program.waiting and program.resumed_at is None:
            self._places.forget(program, ProgramReason.ENDED, now)  # it never had a place
        else:
            pool.waiting.add(program)
            self._places.reorder_family(program)
            self.settle_idle(program, now)
        self._places.react_to_room(pool, pool.backends, now)

    def refuse_waiting(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Refuse all requests of a program that wait."""
        refused = list(program.waiting)
        for request_id in refused:
            self._places.decide(now, program, ProgramAction.REJECT, reason, request_id)
            self._table.drop_request(request_id)
        self.leave_queue(program, refused, now)

    def end_wait(self, program: Program, now: Micros) -> None:
        """Resume a program that has waited too long, whether it fits or not."""
        backend = self._places.backends.pool(program.key.model).most_room() if program.backend is None else None
        if backend is not None:
            self._places.resume(program, backend, ProgramReason.MAX_WAIT, now)
        else:
            self.refuse_waiting(program, ProgramReason.NO_BACKEND, now)

    def settle_idle(self, program: Program, now: Micros) -> None:
        """Start the time after which an idle program is forgotten. One without an id is at once, and one that never had a
        place."""
        if program.is_busy:
            return
        if program.is_anonymous or (program.backend is None and program.state is ProgramState.ACTIVE):
            self._places.forget(program, ProgramReason.ENDED, now)
            return
        self._table.note_idle(program, now, now + self._ttl)

    def expire(self, program: Program, now: Micros) -> None:
        """Forget a program that was idle for too long; one with children is idle only if they are."""
        # A parent shares its context with its children, so it is kept as long as one of them may come back.
        family = program.descendants()
        active_at = now if any(p.is_busy for p in family) else max((p.last_active for p in family), default=program.last_active)
        expires_at = active_at + self._ttl
        if expires_at > now:
            self._table.postpone_expiry(program, expires_at)
            return
        touched = [] if program.backend is None else [program.backend]
        self._places.forget(program, ProgramReason.EXPIRED, now)
        self._places.react(touched, now)

    def refuse_oversized(self, backend: BackendMemory, now: Micros) -> None:
        """Refuse the requests that wait and are larger than any backend of their models, now that `backend` has another
        capacity."""
        for pool in self._places.backends.pools_of(backend):
            for program in [p for p in pool.waiting if p.waiting and pool.is_oversized(p.tokens)]:
                self.refuse_waiting(program, ProgramReason.OVERSIZED, now)
