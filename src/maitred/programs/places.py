"""The places of programs: every change of a program's state, with its decision.

A program is at one backend or among the paused programs of its model, never in both and never in neither.

What a program counts and where it stands in the orders of pauses and of resumes follows from the program and from the root of
its family. So each change ends with these found anew: with `update`, for the program and its descendants; or, where a program
moves (`register`, `pause`), with the `add` of where it comes to and `_update_family`. `BackendMemory` itself finds anew what it
changes of a program at its backend alone: a mark, a minimum stay that ends, a charge that is estimated again.

Example: a paused program has two requests that wait, of 900 and 400 tokens, so it is planned with 1,300. When another program
ends and leaves room for them, `resume` writes three decisions: RESUME of the program, and GRANT of each request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.units import Micros, from_seconds
from maitred.programs.acting_estimators import ACTING_ESTIMATORS
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.backend_table import BackendTable
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import ProgramAction, ProgramDecision, ProgramReason
from maitred.programs.program import Program
from maitred.programs.program_table import ProgramTable

_GRANT: Final = ProgramAction.GRANT  # each look-up of a member in its class takes as long as a call
_PAUSE: Final = ProgramAction.PAUSE
_RESUME: Final = ProgramAction.RESUME
_RESUMED: Final = ProgramReason.RESUMED
_STICKY: Final = ProgramReason.STICKY


class ProgramPlaces:
    """The places of all programs of one core."""

    def __init__(self, config: ProgramsConfig, table: ProgramTable) -> None:
        self._table = table
        self.backends = BackendTable(config, ACTING_ESTIMATORS.create(config.estimator))
        self._by_index = self.backends.by_index
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
        self._max_wait = from_seconds(config.max_wait_secs)
        # Without events nothing is paused but at ticks, which are far apart: there is nothing to calm.
        self._min_stay = from_seconds(config.min_stay_secs) if config.acts_at_events else 0
        self.backends.set_config(config)

    def update(self, program: Program) -> None:
        """Find anew what a program and its family count and where they stand, after the program has changed."""
        program.tokens = program.needed_tokens()
        self._update_one(program)
        if program.children:
            self._update_family(program)

    def _update_family(self, program: Program) -> None:
        for member in program.descendants():
            self._update_one(member)

    def _update_one(self, program: Program) -> None:
        if program.backend is not None:
            self._by_index[program.backend].update(program)
        else:
            self.backends.pool(program.key.model).paused.update(program)

    def start(self, program: Program, backend: BackendMemory, requests: Mapping[RequestId, int], now: Micros) -> None:
        """Let requests go, by their tokens, to the backend where their program is."""
        self._begin(program, backend, requests)
        self.update(program)
        for request_id in requests:
            self.decide(now, program, _GRANT, _STICKY, request_id)

    def _begin(self, program: Program, backend: BackendMemory, requests: Mapping[RequestId, int]) -> None:
        for request_id, tokens in requests.items():
            program.begin_context(request_id, tokens, backend.largest_program)

    def place(self, program: Program, backend: BackendMemory, request_id: RequestId, tokens: int, now: Micros) -> None:
        """Give a program a place at `backend`, and let its request go there."""
        self.backends.pool(program.key.model).paused.remove(program)
        program.idle_contexts.clear()  # its request computes anew what was in memory elsewhere
        self._begin(program, backend, {request_id: tokens})
        self.register(program, backend, now)
        self.decide(now, program, _GRANT, ProgramReason.PLACED, request_id)

    def register(self, program: Program, backend: BackendMemory, now: Micros) -> None:
        """Give a program a place at `backend`."""
        program.origin = None
        program.resumed_at = now
        program.settles_at = now + self._min_stay if self._min_stay else 0
        backend.add(program, now)
        if program.children:
            self._update_family(program)

    def wait(self, program: Program, request_id: RequestId, tokens: int, reason: ProgramReason, now: Micros) -> None:
        """Let a request wait."""
        if not program.waiting:
            program.waiting_since = now
            self.waits.push(program.serial, now + self._max_wait, program)
        program.waiting[request_id] = tokens
        self.num_waiting += 1
        if program.backend is None:
            self.add_paused(program)
        else:
            self.update(program)
        self.decide(now, program, ProgramAction.WAIT, reason, request_id)

    def add_paused(self, program: Program) -> None:
        """Add a program that has no place to the paused ones of its model, or find its places among them anew."""
        program.tokens = program.needed_tokens()
        self.backends.pool(program.key.model).paused.add(program)
        if program.children:
            self._update_family(program)

    def stop_waiting(self, program: Program, request_id: RequestId | None = None) -> Mapping[RequestId, int]:
        """Take a request of a program out of the queue, or all, and return those taken by their tokens. The caller says what
        becomes of them, and updates the program."""
        if request_id is not None and len(program.waiting) > 1:
            stopped = {request_id: program.waiting.pop(request_id)}
        else:
            stopped, program.waiting = program.waiting, {}
            self.waits.remove(program.serial)
        self.num_waiting -= len(stopped)
        return stopped

    def pause(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Take the place of a program of which no request is under way."""
        assert program.backend is not None, "only a program with a place is paused"
        self.decide(now, program, _PAUSE, reason)
        program.origin = program.backend
        self._by_index[program.backend].remove(program)
        program.idle_contexts.keep_last()
        self.add_paused(program)

    def lose_place(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Take the place of a program at a backend that is down or drained. In mode `default` it is placed anew with its next
        request."""
        self.lost_kv_tokens += program.needed_tokens() if reason is ProgramReason.BACKEND_DOWN else 0
        self.pause(program, reason, now)

    def resume(self, program: Program, backend: BackendMemory, reason: ProgramReason, now: Micros) -> None:
        """Give a paused program a place at `backend`, and let its requests go there."""
        self.backends.pool(program.key.model).paused.remove(program)
        granted: Mapping[RequestId, int] = {}
        if program.waiting:
            program.idle_contexts.clear()  # its requests compute anew what was in memory
            granted = self.stop_waiting(program)
            self._begin(program, backend, granted)
        self.register(program, backend, now)
        self.decide(now, program, _RESUME, reason)
        for request_id in granted:
            self.decide(now, program, _GRANT, _RESUMED, request_id)

    def refuse_waiting(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Refuse all requests of a program that wait. The caller says what becomes of the program."""
        for request_id in self.stop_waiting(program) if program.waiting else ():
            self.decide(now, program, ProgramAction.REJECT, reason, request_id)
            self._table.drop_request(request_id)

    def forget(self, program: Program, reason: ProgramReason, now: Micros) -> None:
        """Remove a program from every table; its requests that wait are refused, those under way go on without it."""
        self.refuse_waiting(program, reason, now)
        self.decide(now, program, ProgramAction.END, reason)
        if program.backend is not None:
            self.backends[program.backend].remove(program)
        self.backends.pool(program.key.model).paused.remove(program)
        children = list(program.children.values())
        self._table.remove(program)
        program.contexts.clear()
        for child in children:  # each is the root of a family now
            self.update(child)

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
