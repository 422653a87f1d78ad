"""The scheduler: the parts that decide, wired together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from maitred.admission import Admission, AdmissionConfig
from maitred.core.contracts import Router
from maitred.core.decisions import DecisionLog, NoteTaker
from maitred.core.request import RequestId
from maitred.core.units import to_seconds
from maitred.files.line_file import PRIVATE
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig, Signals, check_policy, open_router, signals_read
from maitred.scheduler.backends.capacity import CapacityController
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.backends.slot_learning import SlotLearning
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.discovery.driver import Discovery
from maitred.scheduler.drivers.admission import RealTimeAdmission
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.placements import GrantedPlacement, Placement, RoutedPlacement
from maitred.scheduler.programs.parts import ProgramParts, kv_polling
from maitred.scheduler.requests import ScheduledRequest
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock


@dataclass(frozen=True, kw_only=True)
class SchedulerParts:
    """What a scheduler is made of, whether it decides in this process or asks another one."""

    config: FleetConfig
    admission: AdmissionConfig
    routing: RoutingConfig
    programs: ProgramsConfig
    client: UpstreamClient
    """What polls the backends."""
    clock: Clock
    decisions: DecisionLog | None = None
    """Gets every input and decision, if there is one."""
    seed: int = 0
    fallback: str | None = None
    """Why less is in force than is configured, or None."""
    default_state: str | None = None
    """The file that keeps the programs if the configuration names none."""
    file_mode: int = PRIVATE
    """For files that are made."""


class Scheduler:
    """What decides for the requests of a gateway, from `start` to `close`; see `interface`."""

    admission: RealTimeAdmission
    """The driver of admission."""
    may_send: Callable[[RequestId], bool] | None = None
    """Asked whether a request that holds a slot may be sent to its backend now, or None if it always may."""
    fleet: FleetView
    """The backends."""
    router: Router
    signals: Signals
    """What the router reads of requests and backends."""
    watch: FleetWatch
    """What polls the backends, where they are polled by this process."""
    capacity: CapacityController
    """How many slots there are and why, where that is decided by this process."""
    discovery: Discovery | None = None
    """What finds backends, or None if another process does."""
    objectives: Mapping[str, int]
    """The priorities of the objectives that discovery knows, by name; always the same object."""
    program_parts: ProgramParts | None = None
    """What decides about programs, or None if requests are routed one by one, or another process decides."""
    notes: NoteTaker | None = None
    """What brings notes to the log of decisions, where another process writes that."""

    @property
    def fallback(self) -> str | None:
        """Why less is in force than is configured, or None."""
        raise NotImplementedError

    @property
    def told_slots(self) -> Mapping[str, int] | None:
        """The slots of each pool as another process has told, or None if this one knows those of each backend."""
        return None

    @property
    def programs(self) -> RealTimePrograms | None:
        """The driver of the programs, or None if requests are routed one by one."""
        return None if self.program_parts is None else self.program_parts.driver

    def placement(self, scheduled: ScheduledRequest) -> Placement:
        """Return the placement of a request: by the router, or where its program has memory."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to decide, inside this event loop."""
        raise NotImplementedError

    async def wait_until_polled(self, secs: float) -> None:
        """Return when every backend has been polled once, or after `secs`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop, after the last request has ended, and write what is left."""
        raise NotImplementedError

    def checks(self) -> Mapping[str, Callable[[], None]]:
        """Return the `check` of every core, of the router and of the fleet with its learned slots, by name: each raises
        InvariantError if its state contradicts itself."""
        raise NotImplementedError

    def reconfigure(self, config: FleetConfig, admission: AdmissionConfig, programs: ProgramsConfig) -> None:
        """Use these configurations from now on. Raises ConfigError if the reservations do not fit or an admission policy cannot
        be made, and ValueError for a change of programs that needs a restart; then nothing has changed."""
        raise NotImplementedError


class LocalScheduler(Scheduler):
    """A scheduler that decides in this process."""

    def __init__(self, parts: SchedulerParts) -> None:
        """Raises ConfigError."""
        config, client, clock, decisions, programs = parts.config, parts.client, parts.clock, parts.decisions, parts.programs
        self._clock, self._random, self._decisions = clock, client.machine.random, decisions
        self.router = open_router(parts.routing, f"{parts.seed}/routing", decisions, clock.now())
        self.signals = signals_read(self.router)
        self.fleet = fleet = FleetView(config, clock)
        router_reads_load = bool(self.signals & (Signals.LOAD | Signals.MEMORY))
        self.admission = asked = self._make_admission(Admission(parts.admission, {}, fleet.pool_load, decisions, clock.now()))
        self.watch = FleetWatch(
            config,
            fleet,
            client,
            clock=clock,
            kv_polling=kv_polling(programs),
            wants_load=lambda: router_reads_load or asked.reads_load,
        )
        self._routed = RoutedPlacement(fleet, self.admission, self.router)
        self._granted: GrantedPlacement | None = None
        if programs.mode != "off":
            self.program_parts = ProgramParts(
                programs,
                fleet,
                clock,
                default_state=parts.default_state,
                log=decisions,
                file_mode=parts.file_mode,
            )
            memories, driver = self.program_parts.memories, self.program_parts.driver
            self._granted = GrantedPlacement(fleet, self.watch, self.admission, memories, driver)
        self._slot_learning = SlotLearning(config, fleet, self.watch, self.admission, decisions)
        self.capacity = CapacityController(fleet, self.admission, self._slot_learning, fallback=parts.fallback)
        self._slot_learning.choose_sources(fleet.backends)
        fleet.listen(self.capacity)
        self.discovery = self._discovery = Discovery(
            config, fleet, client.machine, wants_objectives=bool(parts.admission.objective_priorities)
        )
        self.objectives = self._discovery.objectives
        fleet.on_added += [self.watch.add, self._slot_learning.add]
        fleet.on_removed += [self.watch.remove, self._slot_learning.remove, lambda backend: client.forget(backend.origin)]

    def _make_admission(self, core: Admission) -> RealTimeAdmission:
        return RealTimeAdmission(core, self._clock, self.fleet.pool_load, self.fleet.pools.pool_of)

    @property
    def fallback(self) -> str | None:
        return self.capacity.fallback

    def placement(self, scheduled: ScheduledRequest) -> Placement:
        if scheduled.memory_lease is None:
            return self._routed
        assert self._granted is not None
        return self._granted

    def start(self) -> None:
        """Begin to poll the backends, to learn slots and to keep the programs, inside this event loop."""
        if self.program_parts is not None:
            self.program_parts.start()
            self._begin_programs(self.program_parts)
        self.watch.start()
        self._slot_learning.start()
        self._discovery.start()

    def _begin_programs(self, parts: ProgramParts) -> None:
        parts.begin_term()

    async def wait_until_polled(self, secs: float) -> None:
        began_at = self._clock.now()
        await self._discovery.wait_until_listed(secs)
        await self.watch.wait_until_polled(max(0.0, secs - to_seconds(self._clock.now() - began_at)))

    async def close(self) -> None:
        await self._discovery.close()
        await self.watch.close()
        await self._slot_learning.stop()
        self.fleet.ejection.close()
        self.admission.close()
        if self.program_parts is not None:
            await self.program_parts.close()

    def checks(self) -> Mapping[str, Callable[[], None]]:
        checks: dict[str, Callable[[], None]] = {
            "admission": self.admission.core.check,
            "ejection": self.fleet.ejection.detector.check,
            "fleet": self.fleet.check,
            "discovery": self._discovery.check,
            "routing": partial(check_policy, self.router),
        }
        if self.programs is not None:
            checks["programs"] = self.programs.core.check
        return checks

    def reconfigure(self, config: FleetConfig, admission: AdmissionConfig, programs: ProgramsConfig) -> None:
        if self.programs is not None:
            self.programs.core.config.check_fixed(programs)
        self.capacity.reconfigure(admission)  # The last that may fail.
        self.capacity.on_slots_changed(self.fleet.pools.names, self.fleet.backends)
        if self.programs is not None:
            self.programs.reconfigure(programs)
        self.watch.reconfigure(config)
        self._discovery.set_configured(config.backends)
