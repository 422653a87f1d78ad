"""The passes that make room at backends and use it: at an input (`settle`) and at a tick.

`model_pool` plans, `places` carries out. At an input only what was noted is looked at (`agenda`); at a tick everything is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maitred.core.units import Micros
from maitred.programs.agenda import Agenda
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.departures import Departures
from maitred.programs.enums import ProgramAction, ProgramReason
from maitred.programs.model_pool import ModelPool
from maitred.programs.placement import PlannedResume
from maitred.programs.places import ProgramPlaces
from maitred.programs.rules import ProgramRules
from maitred.programs.victims import plan_pauses, update_marks


class Passes:
    """The passes of one core."""

    def __init__(self, rules: ProgramRules, places: ProgramPlaces, departures: Departures, agenda: Agenda) -> None:
        self._spares = rules.spares_victims
        self._places = places
        self._departures = departures
        self._agenda = agenda

    def settle(self, now: Micros) -> None:
        """Work off what is noted, until nothing is."""
        agenda = self._agenda
        while agenda.wanting or agenda.outgrown:
            if agenda.wanting:
                want = agenda.wanting.pop(0)
                self._let_in(want.pool, want.backends, now)
            else:
                self._departures.refuse_waiting(agenda.outgrown.pop(0), ProgramReason.OVERSIZED, now)
        while agenda.grown:
            self._relieve(agenda.grown.pop(0), now)
        while agenda.changed:
            backend = agenda.changed.pop(0)
            self._relieve(backend, now)
            for pool in self._places.backends.pools_of(backend):
                self._let_in(pool, [backend], now)

    def _let_in(self, pool: ModelPool, backends: Sequence[BackendMemory], now: Micros) -> None:
        """Resume the first paused programs that fit at one of `backends`."""
        if pool.paused.serials:
            self._carry_out(pool.plan_first(backends, now), now)

    def _carry_out(self, placements: Iterator[PlannedResume], now: Micros) -> None:
        for placement in placements:
            self._places.resume(placement.program, self._places.backends[placement.backend], ProgramReason.ROOM, now)

    def _relieve(self, backend: BackendMemory, now: Micros) -> None:
        """Pause and mark programs of a backend that needs more than it has, and withdraw marks that are not needed."""
        if not backend.marked.live and backend.remaining >= 0:
            return
        if not self._places.backends.pools_of(backend):  # It serves no model any more: its programs leave by themselves.
            return
        # Asked again, because the children of a paused program share less than before and so count more.
        while backend.remaining < 0 and (victims := plan_pauses(backend, now, spares=self._spares)):
            for program in victims:
                self._places.pause(program, ProgramReason.OVERFLOW, now)
        marks, withdrawn = update_marks(backend)
        for program in withdrawn:
            self._places.decide(now, program, ProgramAction.UNMARK, ProgramReason.PRESSURE_ENDED)
        for program in marks:
            self._places.decide(now, program, ProgramAction.MARK, ProgramReason.OVERFLOW)

    def tick(self, now: Micros) -> None:
        """Estimate acting programs again; then resume what fits and pause what does not, as ThunderAgent documents it."""
        backends = self._places.backends
        for backend in backends.all:
            backend.settle(now)
            backend.reestimate(now)
        for pool in backends.pools:
            if pool.paused.serials:
                self._resume_paused(pool, now)
        for backend in backends.all:
            self._relieve(backend, now)

    def _resume_paused(self, pool: ModelPool, now: Micros) -> None:
        """Make room for the program that has waited longest, and resume what fits."""
        # Displacement comes first: the pass that follows serves the oldest program before all others.
        for program in pool.plan_room_for_oldest(now):
            self._places.pause(program, ProgramReason.MADE_ROOM, now)
        self._carry_out(pool.plan_all(now), now)
        for plan in (pool.plan_idle, pool.plan_giving_way):
            victims = plan(now)
            for program in victims:
                self._places.pause(program, ProgramReason.MADE_ROOM, now)
            if victims:
                self._carry_out(pool.plan_all(now), now)
