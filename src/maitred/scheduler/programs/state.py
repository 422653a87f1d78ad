"""Keep the programs of a gateway across restarts, and which backends are drained: write down what changes, and adopt what the
last run has left. A backend that was drained is drained again before it is polled, so that no program comes back there.

The programs of the last run are adopted when every backend has been polled once: then it is known which are up. Requests of
programs wait for that (`RealTimePrograms.restored`), a few milliseconds usually, `health_timeout_secs` at most. A program
whose backend is not configured any more, or is down, comes back paused.

Changes are collected by program, since only the last one of each counts, and become rows when the `BackgroundWriter` takes
them. What was decided and not written when the process was killed is at most `FLUSH_SECS` old: a program that was created
since is unknown to the next run, and one that was released since is idle there until it expires.

A store that several schedulers share (`redis_store`) is read when one of them begins to lead (`begin_term`), so that it knows
idle programs too; those whose requests are under way it is told of by its gateways. Backends are drained then as the store
says, and no others, but for those that an operator has drained or resumed since the term began.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final

from maitred.core.units import SECOND, Micros
from maitred.files.background_writer import BackgroundWriter, BatchSource
from maitred.files.daemon_threads import DAEMON_THREADS
from maitred.programs import Program, ProgramAction, ProgramDecision, ProgramKey, ProgramRecord, ProgramState, record_of
from maitred.scheduler.backends.backend import Backend, BackendObserver
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.drivers.programs import MemoryLease, RealTimePrograms
from maitred.scheduler.programs.memories import ProgramMemories
from maitred.scheduler.programs.redis_store import RedisProgramStore, StateError, TakenOver
from maitred.scheduler.programs.store import ProgramChanges, ProgramStore, StateChanges, StoredProgram
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")


MAX_PENDING: Final = 100_000
"""Changes that are kept while the disk does not take them; beyond, the oldest is dropped."""
MAX_BATCH: Final = 1_000
"""Changes in one transaction: the event loop makes so many rows in a few milliseconds."""


_PATIENCE: Final[Micros] = 2 * SECOND
"""How long requests of programs wait for a store that cannot be asked."""


class ProgramStateKeeper(BackendObserver, BatchSource[StateChanges]):
    """Keeps the programs of one gateway in `store`. Stands between the fleet and the memories, which must know first."""

    def __init__(
        self, store: ProgramStore | RedisProgramStore, driver: RealTimePrograms, memories: ProgramMemories, fleet: FleetView
    ) -> None:
        self._store = store
        self._driver = driver
        self._memories = memories
        self._fleet = fleet
        self._writer = BackgroundWriter(self, "the state of programs")
        self._pending: dict[ProgramKey, Program | None] = {}
        """The programs that have changed, the oldest change first; None: the program is forgotten."""
        self._by_serial: dict[int, Program] = {}
        """The programs that are in the file, or will be."""
        self._drained = sorted(store.drained or ())
        """The URLs of the backends that are drained."""
        self._has_drained_changed = False
        self._is_read = isinstance(store, ProgramStore)
        """Whether what the last run has left is known."""
        self._is_owner = self._is_read
        """Whether changes are this scheduler's to write."""
        self._reading: asyncio.Task[None] | None = None
        self._drained_at_begin: Collection[str] = ()
        """The URLs of the backends that were drained when the term began."""
        self.leads: Callable[[], bool] = lambda: True
        """Returns whether this scheduler leads."""
        driver.restored.clear()
        driver.observers.append(self._on_decisions)
        driver.end_observers.append(self._on_request_ended)

    @property
    def failed(self) -> bool:
        """Whether the last changes could not be written."""
        return self._writer.failed

    @property
    def _epoch(self) -> Micros:
        """The wall clock minus that of the core, which is monotonic: asked each time, because the wall clock may be set."""
        clock = self._driver.clock
        return clock.wall() - clock.now()

    def start(self) -> None:
        """Drain what was drained, and begin to write, inside this event loop. Call this before the fleet polls its backends."""
        self._settle_drains()
        self._writer.start()

    def begin_term(self) -> None:
        """Decide about programs from now on: know those that whoever did so before has left. A file was read at the start."""
        if isinstance(self._store, RedisProgramStore):
            if self._reading is not None:
                self._reading.cancel()
            self._driver.restored.clear()
            self._is_read = self._is_owner = False
            self._drained_at_begin = self._drained_now()
            self._reading = asyncio.get_running_loop().create_task(self._read_anew(self._store))

    async def close(self) -> None:
        """Write what is left."""
        await end_tasks(self._reading)
        await self._writer.close()
        self._store.close()

    def _drained_now(self) -> list[str]:
        return sorted(backend.url for backend in self._fleet.backends if backend.is_drained)

    def _settle_drains(self) -> None:
        """Drain and resume backends as the store says, but for those that have changed since the term began."""
        stored = self._store.drained
        for backend in self._fleet.backends:
            if stored is None or backend.is_drained != (backend.url in self._drained_at_begin):
                continue
            if backend.url in stored:
                self._fleet.drain(backend)
            else:
                self._fleet.undrain(backend)
        self._drained = self._drained_now()
        self._has_drained_changed = stored is None or self._drained != sorted(stored)

    async def _read_anew(self, store: RedisProgramStore) -> None:
        """Read what is in the store. If it cannot be asked, programs are new after a while, and what is known of them is
        written as soon as it can."""
        given_up_at, told = self._driver.clock.now() + _PATIENCE, ""
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, store.begin)
                break
            except StateError as error:
                if str(error) != told:
                    log.error("programs are not kept: %s (tried again every second)", error)
                told = str(error)
            if not self._driver.restored.is_set() and self._driver.clock.now() >= given_up_at:
                log.error("programs of the scheduler before are not known: its store could not be asked in time")
                self._driver.restored.set()
            await asyncio.sleep(1)
        if self._driver.restored.is_set():
            store.found = ()
        self._begin_to_own()

    def _begin_to_own(self) -> None:
        """Forget what is known of a term before, unless requests of this one have come, and write changes from now on."""
        if not self._driver.restored.is_set():
            for program in [*self._driver.core.programs]:
                self._driver.release(program.key.tenant, program.key.name)
            self._by_serial.clear()
        self._pending.clear()
        self._settle_drains()
        self._is_read = self._is_owner = True
        self._adopt_when_polled()

    def on_backend_polled(self, backend: Backend) -> None:
        """Adopt the programs of the last run when the last backend has been polled for the first time."""
        self._memories.on_backend_polled(backend)
        drained = self._drained_now()
        if drained != self._drained:
            self._drained, self._has_drained_changed = drained, True
        self._adopt_when_polled()

    def _adopt_when_polled(self) -> None:
        if self._is_read and self._fleet.all_polled and (self._store.found or not self._driver.restored.is_set()):
            self._adopt()
            self._driver.restored.set()

    def on_backend_restarted(self, backend: Backend) -> None:
        """Pass it on."""
        self._memories.on_backend_restarted(backend)

    def _adopt(self) -> None:
        by_url = {backend.url: backend for backend in self._fleet.backends}
        records = [self._record_of(stored, by_url.get(stored.backend)) for stored in self._store.found]
        self._driver.adopt(records)
        for program in self._driver.core.programs:
            self._note(program)
        known = {program.key for program in self._driver.core.programs}
        for stored in self._store.found:
            key = ProgramKey(stored.tenant, stored.name, stored.model)
            if key not in known:  # It has expired, or its tenant has more programs than it may.
                self._pending[key] = None
        if records:
            num_active = sum(program.state is ProgramState.ACTIVE for program in self._driver.core.programs)
            log.info("adopted %d programs of the last run, %d of them at their backends", len(known), num_active)
        self._store.found = ()

    def _record_of(self, stored: StoredProgram, backend: Backend | None) -> ProgramRecord:
        return ProgramRecord(
            tenant=stored.tenant,
            name=stored.name,
            model=stored.model,
            priority_class=stored.priority_class,
            parent=stored.parent,
            backend=None if backend is None else self._memories.index_of(backend, stored.rank),
            tokens=stored.tokens,
            characters=stored.characters,
            inherited_tokens=stored.inherited_tokens,
            num_requests=stored.step_count,
            tool_count=stored.tool_count,
            tool_mean=stored.tool_mean,
            created_at=stored.created_at - self._epoch,
            last_active=stored.last_active - self._epoch,
        )

    def _on_decisions(self, decisions: Sequence[ProgramDecision]) -> None:
        for decision in decisions:
            if decision.action is ProgramAction.END:
                program = self._by_serial.pop(decision.program, None)
                if program is not None:
                    self._change(program.key, None)
                continue
            known = self._by_serial.get(decision.program)
            if known is None and decision.request is not None:
                known = self._driver.core.program_of(decision.request)
            if known is not None:
                self._note(known)

    def _on_request_ended(self, lease: MemoryLease, program: Program | None) -> None:
        if program is not None and program.state is not ProgramState.TERMINATED:
            self._note(program)

    def _note(self, program: Program) -> None:
        if program.is_anonymous:
            return
        self._by_serial[program.serial] = program
        self._change(program.key, program)

    def _change(self, key: ProgramKey, program: Program | None) -> None:
        self._pending.pop(key, None)
        self._pending[key] = program
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def take_batch(self) -> StateChanges | None:
        if not self._is_owner:
            return None
        if isinstance(self._store, RedisProgramStore):
            self._store.may_claim = self.leads()
            if self._store.has_lost_all:
                self._store.has_lost_all, self._has_drained_changed = False, True
                for live in self._driver.core.programs:
                    self._note(live)
        keys = list(islice(self._pending, MAX_BATCH))
        changes: ProgramChanges = {}
        for key in keys:
            program = self._pending.pop(key)
            changes[key] = None if program is None else self._stored(program)
        drained = self._drained if self._has_drained_changed else None
        self._has_drained_changed = False
        return StateChanges(changes, drained) if changes or drained is not None else None

    def write_batch(self, batch: StateChanges) -> None:
        try:
            self._store.write(batch)
        except TakenOver:
            self._is_owner = False  # Until the next term.
            raise

    def give_back(self, batch: StateChanges) -> None:
        self._has_drained_changed |= batch.drained is not None
        live = {program.key: program for program in self._by_serial.values()}
        for key in batch.programs:
            if key not in self._pending:
                self._change(key, live.get(key))

    def _stored(self, program: Program) -> StoredProgram:
        record, backend, rank = record_of(program), "", 0
        if record.backend is not None:
            target = self._memories.target(record.backend)
            backend, rank = target.backend.url, target.rank or 0
        return StoredProgram(
            tenant=record.tenant,
            name=record.name,
            model=record.model,
            priority_class=record.priority_class,
            parent=record.parent,
            backend=backend,
            rank=rank,
            tokens=record.tokens,
            characters=record.characters,
            inherited_tokens=record.inherited_tokens,
            step_count=record.num_requests,
            tool_count=record.tool_count,
            tool_mean=record.tool_mean,
            created_at=max(0, record.created_at + self._epoch),
            last_active=max(0, record.last_active + self._epoch),
        )
