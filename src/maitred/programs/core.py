"""Programs: one core that says which agent programs may hold KV memory now, and at which backend.

    begin(request)    a request of a program comes: it may go at once, waits, or is refused
    progress(id)      tokens of its response have come
    end(id, usage)    it has ended, however; or its client has left while it waited
    release(program)  the client is done with the program
    adopt(records)    programs that the core of the last run has known
    set_backend(...)  a backend has come, is down, is drained, or has another capacity
    advance(now)      ticks, requests that have waited too long, programs that were idle too long

A program is REASONING from its first request under way to the end of the last one, and ACTING between. It is ACTIVE while it is
registered with a backend and PAUSED while it is not; a request of a paused program waits until the program is resumed. (States
and formulas are those of ThunderAgent's documentation.)

    (new) ──fits──▶ ACTIVE ◀──── resume ──── PAUSED ◀── does not fit ── (new)
                      │                        ▲
                      ├── pause (acting, or a marked one when its requests end) ──┘
                      └── release, expiry, end of a request without program id ──▶ TERMINATED

An input settles what was due before it, each thing at its own instant; changes what it is about (`places`, `departures`), and
notes what that may have made possible or necessary for others (`agenda`); and then the passes settle all that is noted, until
nothing is. `model_pool` and `victims` plan, `backend_memory` keeps the sums. Time is an argument, which never runs backwards.

Costs: an input takes O(log n) in the number of programs; a tick O(n log n).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from maitred.core.copying import copied
from maitred.core.decisions import DecisionLog, Recorder
from maitred.core.request import RequestId
from maitred.core.units import Micros, from_seconds
from maitred.programs import inputs
from maitred.programs.adoption import ProgramRecord, adopt_programs
from maitred.programs.agenda import Agenda
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.core_views import ProgramsViews
from maitred.programs.departures import Departures
from maitred.programs.enums import BackendStatus, ProgramAction, ProgramDecision, ProgramReason
from maitred.programs.model_pool import ModelPool
from maitred.programs.passes import Passes
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program, ProgramKey, ProgramRequest, Usage
from maitred.programs.program_table import ProgramTable, shift_deadlines
from maitred.programs.token_estimator import TokenEstimator


class Programs(ProgramsViews):
    """All programs and backends of one gateway, or of one simulated cluster."""

    def __init__(self, config: ProgramsConfig, now: Micros = 0, log: DecisionLog | None = None) -> None:
        """`log` gets the inputs and the decisions."""
        self.config = config
        self._own_recorder = None if log is None else Recorder(log, inputs.ROOM_NAME, inputs.Open(now, config))
        self._recorder = self._own_recorder
        self._last_tick = now
        self._has_ticks, self._interval = config.mode == "tr", config.interval
        self._acts_at_events = config.acts_at_events
        self._tokens = TokenEstimator(is_limited=config.rules.limits_reports)
        self._table = ProgramTable(has_one_context=config.rules.knows_one_context)
        self._agenda = Agenda(acts_at_events=self._acts_at_events)
        self._places = ProgramPlaces(config, self._table)
        self._backends = self._places.backends
        self._departures = Departures(config, self._places, self._table, self._agenda)
        self._passes = Passes(config.rules, self._places, self._departures, self._agenda)
        if log is not None:
            log.note_core(inputs.ROOM_NAME, self)

    def use_log(self, *, is_used: bool) -> None:
        """Tell the log each input from now on, or none, as without a log."""
        self._recorder = self._own_recorder if is_used else None

    def copy(self) -> Programs:
        """Return a core in the same state, without a log. Raises CannotCopyError."""
        kept = [] if self._own_recorder is None else [(self._own_recorder, None)]
        return copied(self, [*kept, (self.config, self.config)])

    def apply(self, given: inputs.ProgramsInput) -> Sequence[ProgramDecision]:
        """Take an input, and answer as the method does that it is named after."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return given.apply_to(self)
        try:
            return recorder.record(given, lambda: given.apply_to(self))
        finally:
            self._recorder = recorder

    def begin(self, request: ProgramRequest, now: Micros) -> Sequence[ProgramDecision]:
        """A request comes. The last decision about it says whether it may go (GRANT), waits (WAIT; a GRANT or REJECT follows
        with a later input) or is refused (REJECT)."""
        if self._recorder is not None:
            return self.apply(inputs.Begin(now, request))
        self._run_due(now)
        program = self._find_or_create(request, now)
        if program is None:
            self._places.decide(now, None, ProgramAction.REJECT, ProgramReason.TOO_MANY_PROGRAMS, request.id)
            return self._places.take()
        tokens = self._prompt_tokens(request)
        self._note_request(program, request, now)
        if program.backend is not None:
            self._begin_active(program, self._backends[program.backend], request.id, tokens, now)
        elif self._places.num_waiting >= self.config.max_waiting:
            self._reject(program, request.id, ProgramReason.TOO_MANY_WAITING, now)
        else:
            self._wait_or_place(program, request.id, tokens, now)
        return self._settle(now)

    def progress(self, request_id: RequestId, tokens: int, now: Micros) -> None:
        """Count `tokens` more of the response to a request. This decides nothing, and settles nothing that was due."""
        if self._recorder is not None:
            self.apply(inputs.Progress(now, request_id, tokens))
            return
        program = self._table.by_request.get(request_id)
        if program is None or request_id not in program.contexts or program.backend is None:
            return
        program.contexts[request_id] += tokens
        self._places.update(program)

    def _prompt_tokens(self, request: ProgramRequest) -> int:
        if request.prompt_tokens is not None:
            return request.prompt_tokens
        self._table.characters[request.id] = request.characters
        return self._tokens.estimate(request.characters, request.model, request.tenant)

    def end(self, request_id: RequestId, usage: Usage | None, now: Micros) -> Sequence[ProgramDecision]:
        """Note the end of a request, however it came, and the usage that its backend has reported. Unknown ones are ignored."""
        if self._recorder is not None:
            return self.apply(inputs.End(now, request_id, usage))
        self._run_due(now)
        characters = self._table.characters.get(request_id, 0)
        program = self._table.drop_request(request_id)
        if program is not None:
            if usage is not None:
                self._tokens.learn(characters, usage.prompt_tokens, program.key.model, program.key.tenant)
            program.last_active = now
            if request_id in program.waiting:
                self._departures.leave_queue(program, request_id, now)
            else:
                self._end_under_way(program, request_id, usage, now)
        return self._settle(now)

    def move(self, request_id: RequestId, now: Micros) -> Sequence[ProgramDecision]:
        """The backend of a granted request has failed it before any part of the response was sent. Its program leaves that
        backend, and what it held there is lost. The decisions say where the request may go instead, or that it waits. It comes
        back to the same backend only if no other one has room."""
        if self._recorder is not None:
            return self.apply(inputs.Move(now, request_id))
        self._run_due(now)
        program = self._table.by_request.get(request_id)
        if program is None or request_id not in program.contexts or program.backend is None:
            return self._places.take()
        left, tokens = self._backends[program.backend], program.contexts[request_id]
        reason = left.reason_to_leave(program)
        # A program is at one backend. So where others of it are under way, this request either goes there once more, or
        # waits until they have ended.
        has_others = len(program.contexts) > 1
        if reason is None and has_others:
            self._places.decide(now, program, ProgramAction.GRANT, ProgramReason.STICKY, request_id)
            return self._settle(now)
        if reason is not None and (has_others or program.waiting):
            del program.contexts[request_id]
            self._places.lost_kv_tokens += tokens
            self._places.wait(program, request_id, tokens, reason, now)
            if not has_others:
                self._departures.move_on(program, reason, now)
        else:
            program.end_context(request_id, tokens, left.largest_program, now)
            self._places.lose_place(program, ProgramReason.BACKEND_DOWN, now)
            self._wait_or_place(program, request_id, tokens, now, left)
        return self._settle(now, [left.index])  # What it has left is free for others, of whichever model.

    def release(self, tenant: str, name: str, now: Micros) -> Sequence[ProgramDecision]:
        """The client is done with a program: forget it (END, if there was one), and refuse its requests that wait."""
        if self._recorder is not None:
            return self.apply(inputs.Release(now, tenant, name))
        self._run_due(now)
        found = sorted(self.find(tenant, name), key=lambda program: program.serial)
        touched = dict.fromkeys(program.backend for program in found if program.backend is not None)
        for program in found:
            self._places.forget(program, ProgramReason.RELEASED, now)
        return self._settle(now, touched)

    def adopt(self, records: Sequence[ProgramRecord], now: Micros) -> Sequence[ProgramDecision]:
        """Take over programs that another core has known, parents before their children. See `adoption`."""
        if self._recorder is not None:
            return self.apply(inputs.Adopt(now, records))
        self._run_due(now)
        return self._settle(now, adopt_programs(self._table, self._places, self.config, records, now))

    def set_backend(
        self,
        index: int,
        now: Micros,
        *,
        models: Collection[str],
        status: BackendStatus = BackendStatus.UP,
        capacity: int | None = None,
        shared_tokens: int = 0,
    ) -> Sequence[ProgramDecision]:
        """Say what is known of a backend now: the models that it serves, what may be done with it, its KV memory in tokens, and
        how many tokens there several programs share."""
        if self._recorder is not None:
            return self.apply(inputs.SetBackend(now, index, list(models), status, capacity, shared_tokens))
        self._run_due(now)
        backend = self._backends.find_or_add(index)
        is_other_capacity = capacity != backend.capacity
        backend.set_capacity(capacity)
        backend.report_shared(shared_tokens)
        if self._backends.set_models(backend, models) | (status is not backend.status):
            self._backends.set_status(backend, status)
            self._departures.settle_places(backend, now)
        if is_other_capacity:
            self._agenda.outgrown += self._departures.find_oversized(backend)
        return self._settle(now, [index])

    def reconfigure(self, config: ProgramsConfig, now: Micros) -> Sequence[ProgramDecision]:
        """Go by `config` from now on; deadlines that are set move by what `max_wait_secs` and `program_ttl_secs` change. Raises
        ValueError for another mode, flavour or estimator: these need a new core."""
        if self._recorder is not None:
            return self.apply(inputs.Reconfigure(now, config))
        self.config.check_fixed(config)
        self._run_due(now)
        wait_change = from_seconds(config.max_wait_secs) - from_seconds(self.config.max_wait_secs)
        shift_deadlines(self._places.waits, wait_change, now)
        ttl_change = from_seconds(config.program_ttl_secs) - from_seconds(self.config.program_ttl_secs)
        shift_deadlines(self._table.by_expiry, ttl_change, now)
        self.config = config
        self._interval = config.interval
        self._places.set_config(config)
        self._departures.set_config(config)
        return self._settle(now, [backend.index for backend in self._backends.all])

    def advance(self, now: Micros) -> Sequence[ProgramDecision]:
        """Settle everything that is due by `now`."""
        if self._recorder is not None and self._is_due(now):
            return self.apply(inputs.Advance(now))
        self._run_due(now)
        return self._places.take()

    def next_deadline(self) -> Micros | None:
        """Return the first instant at which time alone changes something, or None if it never does."""
        if not self._table.by_serial:
            return None
        due = self._last_tick + self._interval if self._has_ticks else None
        for deadlines in (self._table.by_expiry, self._places.waits):
            if deadlines.live and ((other := deadlines.peek_key()) is not None and (due is None or other < due)):
                due = other
        return due

    def _find_or_create(self, request: ProgramRequest, now: Micros) -> Program | None:
        """Return the program of a request, or None if there may not be one more."""
        key = ProgramKey(request.tenant, request.program, request.model)
        program = self._table.find(key)
        if program is not None:
            return program
        if self._table.num_of_tenant(key.tenant) >= self.config.max_programs_per_tenant:
            idlest = self._table.idlest_of(key.tenant)
        elif len(self._table) >= self.config.max_programs:
            idlest = self._table.by_expiry.peek()
        else:
            return self._table.create(key, request.parent, now)
        if idlest is None:
            return None
        self._departures.forget(idlest, ProgramReason.EXPIRED, now)
        return self._table.create(key, request.parent, now)

    def _note_request(self, program: Program, request: ProgramRequest, now: Micros) -> None:
        """Count a request that has come, and learn how long the tool before it took."""
        self._table.by_request[request.id] = program
        if not (program.contexts or program.waiting):
            self._table.note_busy(program)
            if program.num_requests:
                program.tools.add(now - program.last_active)
        program.num_requests += 1
        program.last_active = now
        program.priority_class = request.priority_class
        program.characters = request.characters

    def _begin_active(self, program: Program, backend: BackendMemory, request_id: RequestId, tokens: int, now: Micros) -> None:
        reason = backend.reason_to_leave(program)
        if reason is None:
            self._places.start(program, backend, {request_id: tokens}, now)
            self._agenda.note_growth(backend)
        else:  # Others are under way there, or the program would have left. This request must not follow them.
            self._places.wait(program, request_id, tokens, reason, now)

    def _reject(self, program: Program, request_id: RequestId, reason: ProgramReason, now: Micros) -> None:
        """Refuse a request that has just come."""
        self._table.drop_request(request_id)
        self._places.decide(now, program, ProgramAction.REJECT, reason, request_id)
        self._places.update(program)
        self._departures.settle_idle(program, now)

    def _wait_or_place(
        self, program: Program, request_id: RequestId, tokens: int, now: Micros, left: BackendMemory | None = None
    ) -> None:
        """Place a program that has no backend, or let its request wait. It comes to `left` only if no other one has room."""
        pool = self._backends.pool(program.key.model)
        tokens = pool.believable_tokens(tokens, self._table.characters.get(request_id))
        needed = program.waiting_tokens + tokens
        backend = self._backend_for(program, pool, needed, left)
        if backend is not None:
            self._places.place(program, backend, request_id, tokens, now)
        elif pool.is_oversized(needed) or not pool.backends:
            self._reject(program, request_id, ProgramReason.OVERSIZED if pool.backends else ProgramReason.NO_BACKEND, now)
        else:
            reason = ProgramReason.NO_ROOM if program.num_requests == 1 else ProgramReason.PAUSED
            self._places.wait(program, request_id, tokens, reason, now)
            if left is not None:  # First without it: it is asked only if no other one has room.
                self._agenda.note_wanting(pool, [backend for backend in pool.backends if backend is not left])
            self._agenda.note_wanting(pool, pool.backends)

    def _backend_for(self, program: Program, pool: ModelPool, needed: int, left: BackendMemory | None) -> BackendMemory | None:
        """Return the backend at which a program without one is placed at once, or None if it has to wait."""
        if self.config.mode == "default":
            return pool.fewest_programs(but=left) or pool.fewest_programs() or next(iter(pool.backends), None)
        # Where others are paused, this one takes its turn among them. (One that is paused itself is one of them.)
        return None if pool.paused.serials else pool.place_new(program, needed)

    def _end_under_way(self, program: Program, request_id: RequestId, usage: Usage | None, now: Micros) -> None:
        assert program.backend is not None, "a request is under way at a backend"
        backend = self._backends[program.backend]
        reported = None if usage is None else self._tokens.believable_total(usage.total_tokens, backend.capacity)
        total = program.contexts[request_id] if reported is None else reported
        if usage is not None and reported is not None:
            program.note_inherited(usage.cached_tokens, total)
        program.end_context(request_id, total, backend.largest_program, now)
        if program.contexts or program.waiting:
            self._places.update(program)
            reason = backend.reason_to_leave(program)
            if reason is not None and not program.contexts:
                self._departures.move_on(program, reason, now)
        elif program.is_anonymous:
            self._places.forget(program, ProgramReason.ENDED, now)
        else:
            self._begin_acting(program, backend, now)
        self._agenda.note_change(backend)

    def _begin_acting(self, program: Program, backend: BackendMemory, now: Micros) -> None:
        """Let a program act that has ended its last request. It may have to go: a program goes between two requests only."""
        was_marked, program.is_marked = program.is_marked, False
        backend.estimate(program, now)
        self._places.update(program)
        self._departures.settle_idle(program, now)
        reason = backend.reason_to_leave(program)
        if reason is not None:
            self._places.lose_place(program, reason, now)
        elif was_marked and self.config.rules.pauses_marked_at_once:  # else it is paused below, if the pressure lasts
            self._places.pause(program, ProgramReason.OVERFLOW, now)
        elif self._acts_at_events:
            for pool in self._backends.pools_of(backend):
                if pool.gives_way(program, backend, now):
                    self._places.pause(program, ProgramReason.MADE_ROOM, now)
                    return

    def _settle(self, now: Micros, changed: Iterable[int] = ()) -> Sequence[ProgramDecision]:
        """Settle what an input has noted, and that it has `changed` these backends; return what was decided."""
        for index in changed:
            self._agenda.note_change(self._backends[index])
        self._passes.settle(now)
        return self._places.take()

    def _is_due(self, now: Micros) -> bool:
        due = self.next_deadline()
        return due is not None and due <= now

    def _run_due(self, now: Micros) -> None:
        """Do everything that fell due by `now`, each thing at its own instant."""
        while (due := self.next_deadline()) is not None and due <= now:
            self._run_due_at(due)
        if not self._table.by_serial:  # nothing to look at: the next tick is one interval after the next program comes
            self._last_tick = now

    def _run_due_at(self, due: Micros) -> None:
        # What has expired first, since one that has waited too long may be resumed in its memory. A tick last: it sees all.
        program = self._table.by_expiry.peek()
        if program is not None and self._table.by_expiry.peek_key() == due:
            self._departures.expire(program, due)
        elif self._places.waits.peek_key() == due:
            self._departures.end_wait(self._places.waits.pop(), due)
        else:
            self._last_tick = due
            self._passes.tick(due)
        self._passes.settle(due)
