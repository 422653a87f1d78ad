"""Program statistics: what becomes of the agent programs of a run, added up while it runs.

A program that was forgotten and comes again goes on with its old row. Requests without a program id are programs of their own;
they count as steps and have no rows, so that memory does not grow with them.

Imbalance is the difference between the instance whose programs need the largest share of its memory and the one whose need
the smallest. Its mean is over the time up to the last change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from maitred.core.units import Micros
from maitred.programs import BackendMemory, Program, ProgramAction, ProgramDecision
from maitred.sim.results import NEVER, ProgramColumns

_PAUSE: Final = ProgramAction.PAUSE
_WAIT: Final = ProgramAction.WAIT
_RESUME: Final = ProgramAction.RESUME
_END: Final = ProgramAction.END


class _ProgramRow:
    """One program so far."""

    __slots__ = ("first_arrival", "is_over", "last_end", "num_steps", "paused", "paused_since", "pauses", "waited")

    def __init__(self, first_arrival: Micros) -> None:
        self.first_arrival = first_arrival
        self.last_end: Micros = NEVER
        self.num_steps = 0
        self.pauses = 0
        self.paused: Micros = 0
        self.paused_since: Micros = NEVER
        self.waited: Micros = 0
        self.is_over = False


class ProgramStatistics:
    """The rows of all programs that have an id, and how unevenly the memory of the instances is used."""

    def __init__(self, num_instances: int, capacity: int) -> None:
        """`capacity` is that of one instance, in tokens."""
        self._capacity = capacity
        self._has_several = num_instances > 1
        self._rows: dict[tuple[str, str], _ProgramRow] = {}
        """By tenant and id, in the order of arrival."""
        self._by_serial: dict[int, _ProgramRow] = {}
        """The rows of programs that the core knows."""
        self._num_steps = 0
        self._imbalance = self._max_imbalance = 0.0
        self._imbalance_integral = 0.0
        """Over time, in µs."""
        self._measured_until: Micros = 0

    def on_request(self, program: Program) -> None:
        """Note that a request of a program has arrived."""
        if program.is_anonymous or program.serial in self._by_serial:
            return
        row = self._rows.setdefault((program.key.tenant, program.key.name), _ProgramRow(program.created_at))
        self._by_serial[program.serial] = row

    def on_granted(self, program: Program, waited: Micros) -> None:
        """Note that a request of a program may go after it has `waited` for memory."""
        row = self._by_serial.get(program.serial)
        if row is not None:
            row.waited += waited

    def on_request_end(self, program: Program | None, now: Micros, *, completed: bool) -> None:
        """Note that a request has ended. `program` is None if the core has forgotten its program."""
        self._num_steps += completed
        row = None if program is None else self._by_serial.get(program.serial)
        if row is not None:
            row.num_steps += completed
            row.last_end = now

    def on_release(self, tenant: str, name: str) -> None:
        """Note that no request of a program will come any more."""
        row = self._rows.get((tenant, name))
        if row is not None:
            row.is_over = True

    def on_decisions(self, decisions: Iterable[ProgramDecision]) -> None:
        """Count pauses, and the time for which programs are paused."""
        for decision in decisions:
            row = self._by_serial.get(decision.program)
            if row is None:
                continue
            action = decision.action
            if action is _PAUSE or (action is _WAIT and row.paused_since == NEVER):
                row.pauses += action is _PAUSE
                row.paused_since = decision.at
            elif action is _RESUME or action is _END:
                if row.paused_since != NEVER:
                    row.paused += decision.at - row.paused_since
                    row.paused_since = NEVER
                if action is _END:
                    del self._by_serial[decision.program]

    def on_usage(self, backends: Iterable[BackendMemory], now: Micros) -> None:
        """Measure how unevenly memory is used from `now` on."""
        if not self._has_several:
            return
        self._imbalance_integral += self._imbalance * (now - self._measured_until)
        self._measured_until = now
        used = [backend.used for backend in backends]
        self._imbalance = (max(used) - min(used)) / self._capacity if used else 0.0
        self._max_imbalance = max(self._max_imbalance, self._imbalance)

    def columns(self, end: Micros) -> ProgramColumns:
        """Return the rows as columns, and the figures beside them, of a run that ended at `end`."""
        rows = self._rows.values()
        for row in rows:
            if row.paused_since != NEVER:
                row.paused += max(0, end - row.paused_since)
                row.paused_since = NEVER

        def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.fromiter((getattr(row, name) for row in rows), dtype=np.int64, count=len(rows))

        span = self._measured_until
        return ProgramColumns(
            names=tuple(name for _, name in self._rows),
            tenants=tuple(tenant for tenant, _ in self._rows),
            first_arrival=column("first_arrival"),
            last_end=column("last_end"),
            steps=column("num_steps"),
            pauses=column("pauses"),
            paused=column("paused"),
            waited=column("waited"),
            is_over=column("is_over").astype(bool),
            num_steps=self._num_steps,
            imbalance=self._imbalance_integral / span if self._has_several and span else None,
            max_imbalance=self._max_imbalance if self._has_several else None,
        )
