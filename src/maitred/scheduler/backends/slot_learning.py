"""Learned slots, live: which backends have a controller, and the looks that drive it.

The slots of a backend come from the first of these that there is:

    configured   `slots_per_backend`
    reported     what the backend says that it runs at once; with `slots: learned`, the start and the upper bound
    learned      found by looking at it (`admission.learned_slots`), in mode `priority`
    default      64, a guess: with `slots: fixed`, or where slots count tokens

**Looks.** A backend without requests of this gateway costs nothing: its loop waits for the first one. While there are some,
it ticks every 100 ms, and reads `/metrics` at once and then as `SlotController.reading_due_in` says: every 200 ms while all
slots are used, every second otherwise. A reading is a task of its own, so a page that takes long delays no tick.

*Example.* vLLM with `max_num_seqs` 16 and 100 clients: 8 slots at the first request, and 12 and 18 as soon as pages show 8 and
12 running and none waiting. Then two pages show 16 running and 2 waiting: 16 slots. From there one page every 200 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from maitred.admission import AdmissionConfig
from maitred.admission.learned_slots import (
    LEAST_LEARNED,
    MOST_LEARNED,
    START_SLOTS,
    EngineReading,
    LearnedLimit,
    OwnLoad,
    PoolDemand,
    SlotController,
    SlotDecision,
    SlotState,
)
from maitred.admission.learned_slots.model_shares import share_slots
from maitred.core.decisions import DecisionLog
from maitred.core.units import Micros, to_seconds
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.drivers.admission import RealTimeAdmission
from maitred.scheduler.engines.readings import MetricsReader
from maitred.wire.clock import Clock
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
_NOT_BELIEVED: Final = (
    "backend %s: its metrics show %d running requests while %d streams of this gateway answer, so they are not believed: slots "
    "are learned of the streams alone; if its gauge is not set, or the page is another engine's, set slots_per_backend"
)


class SlotLearning:
    """The controllers of all backends of a gateway."""

    def __init__(
        self,
        config: FleetConfig,
        fleet: FleetView,
        watch: FleetWatch,
        admission: RealTimeAdmission,
        decisions: DecisionLog | None,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._admission = admission
        self._decisions = decisions
        self._watch = watch
        self._is_started = False
        self._tasks: dict[Backend, asyncio.Task[None]] = {}
        self._chosen_for: AdmissionConfig | None = None
        self._recalled: dict[str, LearnedLimit] = {}
        """What was recalled of backends that have no controller yet, by their URLs."""
        self._told: dict[int, tuple[int, str]] = {}
        """What the log has last said of the slots of each backend, by its index: number and source."""

    def choose_sources(self, backends: Iterable[Backend]) -> None:
        """Give a controller to each of `backends` whose slots must be learned now, and take it from the others; to all backends
        if the configuration of admission is another one than at the last time."""
        admission = self._admission.core.config
        if admission is not self._chosen_for:
            self._chosen_for, backends = admission, self._fleet.backends
        is_limit = admission.mode == "priority"
        self._fleet.prefers_free_slots = is_limit
        may_learn = is_limit and admission.slot_cost == "requests" and self._config.learns_slots
        for backend in backends:
            reported, before = backend.reported_slots, backend.learned_slots
            learns = may_learn and (reported is None or self._config.slots == "learned")
            if learns and not self._fits(backend.learned_slots, reported):
                backend.learned_slots = self._make_controller(backend, reported)
            elif not learns:
                backend.learned_slots = None
            if backend.learned_slots is not before:
                self._fleet.pools.recount(backend)
            if is_limit and backend.was_ever_healthy:
                self._tell(backend)

    def start(self) -> None:
        """Begin to look at the backends, each in a task of its own."""
        self._is_started = True
        for backend in self._fleet.backends:
            self.add(backend)

    async def stop(self) -> None:
        """Look no more."""
        self._is_started = False
        await end_tasks(*self._tasks.values())

    def add(self, backend: Backend) -> None:
        """Look at a backend that has come."""
        if self._is_started:
            learner = BackendLearner(self, backend, self._watch.metrics_reader(backend), self._admission.clock)
            task = self._tasks[backend] = asyncio.create_task(learner.run())
            task.add_done_callback(_on_looks_ended)

    def remove(self, backend: Backend) -> None:
        """Look at a backend no more that has gone."""
        self._told.pop(backend.index, None)
        task = self._tasks.pop(backend, None)
        if task is not None:
            task.cancel()

    def demand(self, backend: Backend) -> PoolDemand:
        """Return the demand for the slots of a backend, over all pools that it serves."""
        core, fleet, wanted, held, keeps_lead = self._admission.core, self._fleet, False, 0, False
        slots = fleet.pools.backend_slots(backend).slots
        pools = fleet.pools.of_backend(backend)
        for pool, total, _ in fleet.pools.sizes(pools):
            demand = core.demand(pool)
            wanted = wanted or demand.wanted
            held = max(held, round(demand.held * slots / max(1, total)))
            # With several backends, a request beyond the limit of one would be served by a victim's place at another.
            is_only_way = len(pools) == len(fleet.pools.backends(pool)) == 1
            keeps_lead = demand.keeps_lead and is_only_way
        return PoolDemand(wanted, held, keeps_lead)

    def learned(self) -> dict[str, LearnedLimit]:
        """Return the knowledge of the backends' limits, by URL. O(backends)."""
        known = ((backend.url, backend.learned_slots) for backend in self._fleet.backends)
        return {url: learned for url, slots in known if slots is not None and (learned := slots.learned) is not None}

    def recall(self, limits: Mapping[str, LearnedLimit]) -> None:
        """Begin with what another process had learned of backends. For one that is not known here yet, or whose slots are not
        learned, it is kept until they are."""
        self._recalled |= limits
        for backend in self._fleet.backends:
            controller = backend.learned_slots
            if controller is not None and (learned := self._recalled.pop(backend.url, None)) is not None:
                self.settle(backend, controller, controller.recall(learned, self._admission.clock.now()))

    def settle(self, backend: Backend, controller: SlotController, decision: SlotDecision | None) -> None:
        """Put what was decided at a look in force, and share the slots among pools."""
        shares = self._shares(backend, controller.slots) if len(backend.models) > 1 else {}
        if decision is not None:
            log.debug("backend %s: %d slots instead of %d (%s)", backend.url, decision.slots, decision.before, decision.reason)
        if decision is not None or (shares, controller.lead) != (backend.slot_shares, backend.lead):
            backend.slot_shares, backend.lead = shares, controller.lead
            self._fleet.pools.recount(backend)
            self._fleet.tell_slots_changed(self._fleet.pools.of_backend(backend), (backend,))
        if controller.state is SlotState.GUESSED:
            self._tell(backend)

    def _shares(self, backend: Backend, slots: int) -> dict[str, int]:
        """Return the shares of the pools: a pool asks for what it has in flight there, or for all if more waits."""
        pools, wants = self._fleet.pools, self._admission.core.demand
        in_flight = Counter[str]()
        for sent in backend.requests:
            in_flight[pools.pool_of(sent.model)] += sent.request.sequences
        asked = {pool: slots if wants(pool).wanted else in_flight[pool] for pool in pools.of_backend(backend)}
        return share_slots(slots, asked)

    def _fits(self, controller: SlotController | None, reported: int | None) -> bool:
        """Return whether a controller has the bounds that it should have."""
        return controller is not None and controller.most == (reported or MOST_LEARNED)

    def _make_controller(self, backend: Backend, reported: int | None) -> SlotController:
        """Return a controller that begins with what is known of the backend. Before its first poll it reports nothing; a report
        that changes later is of an engine that was started anew."""
        start, most = reported or START_SLOTS, reported or MOST_LEARNED
        controller = SlotController(start, most, min(LEAST_LEARNED, most), backend=backend.index, log=self._decisions)
        before, known = backend.learned_slots, self._recalled.pop(backend.url, None)
        if before is not None and before.most == MOST_LEARNED:
            known = before.learned
        if known is not None:
            controller.recall(known, self._admission.clock.now())
        return controller

    def _tell(self, backend: Backend) -> None:
        """Log where the slots of a backend come from, when that is known and when it changes; a learned number only when it
        has changed by a tenth and is trusted."""
        now, controller = self._fleet.pools.backend_slots(backend), backend.learned_slots
        before = self._told.get(backend.index)
        if controller is not None and controller.state is SlotState.GUESSED:
            if before is None or before[1] != "guessed":
                self._told[backend.index] = (now.slots, "guessed")
                hint = "it has no metrics and its answers are not streamed, so nothing can be learned; set slots_per_backend"
                log.warning("backend %s: %d slots, which is a guess: %s", backend.url, now.slots, hint)
            return
        if before is not None and before[1] == now.source:
            known = None if controller is None else controller.limit
            if known is None or abs(known - before[0]) <= max(1, before[0] // 10):
                return
            log.info("backend %s: it runs %d requests at once: %d slots", backend.url, known, now.slots)
            self._told[backend.index] = (known, now.source)
            return
        self._told[backend.index] = (now.slots, now.source)
        if now.source == "default":
            hint = "set slots_per_backend, or let them be learned (slots: auto)"
            log.warning("backend %s: %d slots, which is a guess: it reports no number; %s", backend.url, now.slots, hint)
        elif controller is not None:
            bounds = f"from {controller.least} to {controller.most:,}"
            log.info("backend %s: %d slots at first, to be learned, %s", backend.url, now.slots, bounds)
        else:
            log.info("backend %s: %d slots, %s", backend.url, now.slots, now.source)


class BackendLearner:
    """The looks at one backend."""

    def __init__(self, learning: SlotLearning, backend: Backend, reader: MetricsReader, clock: Clock) -> None:
        self._learning = learning
        self._backend = backend
        self._reader, self._clock = reader, clock
        self._next_reading: Micros = 0
        self._fetch: asyncio.Task[None] | None = None
        self._has_read = False
        """Whether a reading has ended since the backend was idle."""
        self._has_warned = False
        """Whether the log says that its page is not believed."""

    async def run(self) -> None:
        """Look while requests are in flight, and wait while there are none."""
        backend = self._backend
        try:
            while True:
                await backend.in_use.wait()
                self._has_read = False
                while backend.learned_slots is not None and backend.own_requests:
                    self._look(backend.learned_slots, self._clock.now())
                    await asyncio.sleep(to_seconds(backend.learned_slots.look_interval))
                backend.in_use.clear()
                backend.reading = None
        finally:
            if self._fetch is not None:
                self._fetch.cancel()

    def _look(self, controller: SlotController, now: Micros) -> None:
        # 1 ms of grace: the timers of the loop may ring that much early.
        if self._fetch is None and now + 1000 >= self._next_reading and self._reader.may_report_load:
            self._next_reading = now + (controller.reading_due_in(1, wanted=True) or 0)
            self._fetch = asyncio.create_task(self._read(controller))
        # After an idle time the last reading is old, and the first new one is on its way: not a reason to be blind.
        if (self._has_read or not self._reader.may_report_load) and controller.wants_ticks:
            own = self._backend.own_requests.summary(now, is_reading=False)
            self._learning.settle(self._backend, controller, controller.on_tick(own, self._learning.demand(self._backend), now))

    def _warn_of_page(self, reading: EngineReading, own: OwnLoad) -> None:
        """Say once that the page of the engine is not believed."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(_NOT_BELIEVED, self._backend.url, reading.running, own.answered)

    async def _read(self, controller: SlotController) -> None:
        try:
            asked = self._clock.now()
            report = await self._reader.read(samples_only=True)
            backend, now = self._backend, self._clock.now()
            self._has_read, backend.reading = True, report
            reading = None if report is None else report.reading
            if reading is not None and controller is backend.learned_slots:
                own, demand = backend.own_requests.summary(now, is_reading=True), self._learning.demand(backend)
                self._learning.settle(backend, controller, controller.on_reading(reading, own, demand, now))
                if controller.distrusts_page:
                    self._warn_of_page(reading, own)
                self._next_reading = asked + (controller.reading_due_in(own.in_flight, wanted=demand.wanted) or 0)
        finally:
            self._fetch = None


def _on_looks_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.critical("the slots of a backend are learned no more: restart the gateway", exc_info=task.exception())
