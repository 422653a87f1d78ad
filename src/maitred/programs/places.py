"""The places of programs: every change of a program's state, with its decision, and the passes that make room and use it.

`model_pool` plans and `backend_memory` counts; the methods here carry out. A program is at one backend or among the waiting
programs of its model, never in both and never in neither.

The orders of pauses and of resumes go by the root of a family. So whatever changes in a root that the orders read is followed
by `reorder_family`, before anything is decided.

Example: a paused program has two requests that wait, of 900 and 400 tokens, so it is planned with 1,300. When another program
ends and leaves room for them, `resume` writes three decisions: RESUME of the program, and GRANT of each request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.units import Micros, from_seconds
from maitred.programs.acting_estimators import ACTING_ESTIMATORS
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.backend_table import BackendTable
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import ProgramAction, ProgramDecision, ProgramReason, ProgramState, ProgramStatus
from maitred.programs.model_pool import ModelPool
from maitred.programs.placement import Placement
from maitred.programs.program import Program, WaitingStep
from maitred.programs.program_table import ProgramTable

_REASONING: Final = ProgramStatus.REASONING


class ProgramPlaces:
    """The places of all programs of one core."""

    def __init__(self, config: ProgramsConfig, table: ProgramTable) -> None:
        self._table = table
        self.backends = BackendTable(config, ACTING_ESTIMATORS.create(config.estimator))
        self.num_waiting = 0
        """Requests that wait."""
        self.waits: IndexedHeap[int, Micros, Program] = IndexedHeap()
        """Programs with a request that waits, by when they are resumed at the latest."""
        self.lost_kv_tokens = 0
        """Tokens of KV that programs held at backends that went down."""
        self._decisions: list[ProgramDecision] = []
        self.set_config(config)

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on."""
        self._mode = config.mode
        self._has_events = config.mode == "tr" and config.rules.acts_at_events
        """Whether anything is paused and resumed between ticks."""
        self._max_wait = from_seconds(config.max_wait_secs)
        self._min_stay = from_seconds(config.min_stay_secs) if self._has_events else 0
        self.backends.set_config(config)

    def start(self, program: Program, backend: BackendMemory, request_id: RequestId, tokens: int, now: Micros) -> None:
        """Count a request as under way."""
        self._table.by_request[request_id] = program
        program.begin_context(request_id, tokens, backend.largest_program)
        backend.set_status(program, _REASONING, now)
        self.reorder_family(program)

    def wait(self, program: Program, request_id: RequestId, tokens: int, now: Micros) -> None:
        """Count a request as waiting."""
        if not program.waiting:
            program.waiting_since = now
            self.waits.push(program.serial, now + self._max_wait, program)
        program.waiting[request_id] = WaitingStep(now, tokens)
        self._table.by_request[request_id] = program
        self.num_waiting += 1

    def enqueue(self, program: Program, pool: ModelPool, request_id: RequestId, tokens: int, now: Micros) -> None:
        """Let a request wait until its program is resumed."""
        if program.state is not ProgramState.PAUSED:
            program.state = ProgramState.PAUSED
            program.paused_since = now
        program.status = _REASONING
        reason = ProgramReason.NO_ROOM if program.step_count == 1 else ProgramReason.PAUSED
        self.wait(program, request_id, tokens, now)
        program.tokens = program.waiting_tokens
        pool.waiting.add(program)
        self.reorder_family(program)
        self.decide(now, program, ProgramAction.WAIT, reason, request_id)

    def register(self, program: Program, backend: BackendMemory, now: Micros) -> None:
        """Give a program a place at `backend`."""
        program.state = ProgramState.ACTIVE
        program.origin = None
        program.resumed_at = now
        program.settles_at = now + self._min_stay if self._min_stay else 0
        backend.add(program, now)

    def pause(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Take the place of a program of which no request is under way."""
        assert program.backend is not None, "only a program with a place is paused"
        backend = self.backends[program.backend]
        self.decide(now, program, ProgramAction.PAUSE, reason)
        backend.remove(program)
        program.origin = backend.index
        program.idle_contexts.keep_last()
        if program.waiting:
            program.tokens = program.waiting_tokens
        else:
            program.update_tokens()
        if not program.waiting and program.status is _REASONING:  # its last request has failed just now
            program.status = ProgramStatus.ACTING
            program.acting_since = now
        program.state = ProgramState.PAUSED
        program.paused_since = now
        self.backends.pool(program.key.model).waiting.add(program)
        self.reorder_family(program)

    def lose_place(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Take the place of a program at a backend that is down or drained. In mode `default` it is placed anew with its next
        request."""
        self.lost_kv_tokens += program.tokens if reason is ProgramReason.BACKEND_DOWN else 0
        self.pause(program, reason, now)

    def resume(self, program: Program, backend: BackendMemory, reason: ProgramReason, now: Micros) -> None:
        """Give a paused program a place at `backend`, and let its requests go there."""
        self.backends.pool(program.key.model).waiting.remove(program)
        if program.waiting:  # they compute anew what was in memory
            program.idle_contexts.clear()
        granted = self._start_waiting(program, backend)
        self.register(program, backend, now)
        self.decide(now, program, ProgramAction.RESUME, reason)
        for request_id in granted:
            self.decide(now, program, ProgramAction.GRANT, ProgramReason.RESUMED, request_id)
        if granted:
            self.reorder_family(program)

    def grant_waiting(self, program: Program, backend: BackendMemory, reason: ProgramReason, now: Micros) -> None:
        """Let all requests of a program that wait go to its backend."""
        granted = self._start_waiting(program, backend)
        if granted:
            backend.set_status(program, _REASONING, now)
            self.reorder_family(program)
        for request_id in granted:
            self.decide(now, program, ProgramAction.GRANT, reason, request_id)

    def _start_waiting(self, program: Program, backend: BackendMemory) -> Collection[RequestId]:
        """Count all requests of a program that wait as under way, and return them."""
        waiting = program.waiting
        if not waiting:
            return ()
        self.waits.remove(program.serial)
        program.waiting = {}
        self.num_waiting -= len(waiting)
        for request_id, request in waiting.items():
            program.begin_context(request_id, request.tokens, backend.largest_program)
        program.status = _REASONING
        return waiting

    def _reject_waiting(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        for request_id in program.waiting:
            self.decide(now, program, ProgramAction.REJECT, reason, request_id)
        self.num_waiting -= len(program.waiting)

    def forget(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Remove a program from every table; its requests that wait are refused, those under way go on without it."""
        self._reject_waiting(program, reason, now)
        self.decide(now, program, ProgramAction.END, reason)
        if program.backend is not None:
            self.backends[program.backend].remove(program)
        self.backends.pool(program.key.model).waiting.remove(program)
        self.waits.remove(program.serial)
        children = list(program.children.values())
        self._table.remove(program)
        program.waiting.clear()
        program.contexts.clear()
        program.state = ProgramState.TERMINATED
        for child in children:  # each is the root of a family now
            self.reorder(child)
            self.reorder_family(child)

    def reorder_family(self, program: Program) -> None:
        """Find the places of the descendants of a program anew, after it has changed."""
        if program.children:
            for member in program.descendants():
                self.reorder(member)

    def reorder(self, program: Program) -> None:
        """Find the place of a program in the order of pauses or of resumes anew, after it or its root has changed."""
        if program.backend is not None:
            self.backends[program.backend].recharge(program)
        elif program.state is ProgramState.PAUSED:
            self.backends.pool(program.key.model).waiting.add(program)

    def react(self, backends: Iterable[int], now: Micros) -> None:
        """Between ticks: pause and mark where an event has raised the need, resume where it has left room."""
        if not self._has_events:
            return
        for index in backends:
            backend = self.backends[index]
            self._relieve(backend, now)
            for pool in self.backends.pools_of(backend):
                self.react_to_room(pool, [backend], now)

    def give_way(self, program: Program, now: Micros) -> None:
        """Pause a program that has just begun to act, if it is the turn of another tenant."""
        if not self._has_events or program.backend is None:
            return
        backend = self.backends[program.backend]
        if any(pool.gives_way(program, backend, now) for pool in self.backends.pools_of(backend)):
            self.pause(program, ProgramReason.MADE_ROOM, now)

    def react_to_pressure(self, backend: BackendMemory, now: Micros) -> None:
        """Between ticks: pause and mark where a program has grown."""
        if self._has_events:
            self._relieve(backend, now)

    def react_to_room(self, pool: ModelPool, backends: Sequence[BackendMemory], now: Micros) -> None:
        """Between ticks: resume the first waiting programs that fit at `backends`."""
        if self._has_events and len(pool.waiting):
            self._carry_out(pool.plan_first(backends, now), ProgramReason.ROOM, now)

    def _carry_out(self, placements: Iterator[Placement], reason: ProgramReason, now: Micros) -> None:
        for placement in placements:
            self.resume(placement.program, self.backends[placement.backend], reason, now)

    def _relieve(self, backend: BackendMemory, now: Micros) -> None:
        """Pause and mark programs of a backend that needs more than it has, and withdraw marks that are not needed."""
        remaining = backend.remaining
        if remaining >= 0 and not backend.marked:
            return
        pools = self.backends.pools_of(backend)
        if not pools:
            return
        pool = pools[0]  # any pool will do: a backend of several models has one memory
        # Asked again, because the children of a paused program share less than before and so count more.
        while backend.remaining < 0 and (victims := pool.plan_pauses(backend, now)):
            for program in victims:
                self.pause(program, ProgramReason.OVERFLOW, now)
        self._update_marks(pool, backend, now)

    def _update_marks(self, pool: ModelPool, backend: BackendMemory, now: Micros) -> None:
        marks, withdrawn = pool.plan_marks(backend)
        for program in withdrawn:
            backend.unmark(program)
            self.decide(now, program, ProgramAction.UNMARK, ProgramReason.PRESSURE_ENDED)
        for program in marks:
            self.decide(now, program, ProgramAction.MARK, ProgramReason.OVERFLOW)

    def tick(self, now: Micros) -> None:
        """Estimate acting programs again; then resume what fits and pause what does not, as ThunderAgent documents it."""
        for backend in self.backends.all:
            backend.settle(now)
            backend.reestimate(now)
        for pool in self.backends.pools:
            if len(pool.waiting):
                self._resume_waiting(pool, now)
        for backend in self.backends.all:
            self._relieve(backend, now)

    def _resume_waiting(self, pool: ModelPool, now: Micros) -> None:
        """At a tick: make room for the program that has waited longest, and resume what fits."""
        # Displacement comes first: the pass that follows serves the oldest program before all others.
        for program in pool.plan_room_for_oldest(now):
            self.pause(program, ProgramReason.MADE_ROOM, now)
        self._carry_out(pool.plan_all(now), ProgramReason.ROOM, now)
        for plan in (pool.plan_idle, pool.plan_giving_way):
            victims = plan(now)
            for program in victims:
                self.pause(program, ProgramReason.MADE_ROOM, now)
            if victims:
                self._carry_out(pool.plan_all(now), ProgramReason.ROOM, now)

    def decide(
        self,
        now: Micros,
        program: Program | None,
        action: ProgramAction,
        reason: ProgramReason,
        request_id: RequestId | None = None,
    ) -> None:
        """Note a decision; it is about no program if the tenant may have no more."""
        serial, backend = (0, None) if program is None else (program.serial, program.backend)
        self._decisions.append(ProgramDecision(now, serial, action, reason, request_id, backend))

    def take(self) -> Sequence[ProgramDecision]:
        """Return the decisions since the last call."""
        decisions, self._decisions = self._decisions, []
        return decisions
