"""Learned slots in virtual time: the live controllers, with what the instances would publish as their signals.

Each instance has a controller of its own (`admission.learned_slots`), and every model has the sum of their slots. While
requests are in flight, all instances are looked at every 100 ms, as the live gateway does; a controller gets a reading when
one is due, and a tick otherwise. A look changes nothing in an instance. Routers are shown instances with free slots, as
everywhere (`routing.free_slots`).

*Example.* An instance with `max_num_seqs: 16` starts with 8 slots. 100 bulk requests arrive at 0. Soon 8 run and none waits: 12
slots, and then 18. Two looks at 16 running and 2 waiting: 16 slots, and the other 82 requests stay in front, where their class
counts.
"""

from __future__ import annotations

import msgspec

from maitred.admission.learned_slots import (
    TICK_INTERVAL,
    EngineReading,
    OwnRequest,
    OwnRequests,
    PoolDemand,
    SlotController,
)
from maitred.admission.terms.lead import sum_leads
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.sim.admission_driver import AdmissionDriver
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.replica import Replica


class _LearnedEngine:
    """One instance, its controller, and the requests that it has."""

    def __init__(self, replica: Replica, controller: SlotController) -> None:
        self.replica = replica
        self.controller = controller
        self.own = OwnRequests()
        self.requests: dict[RequestId, OwnRequest] = {}
        self.next_reading: Micros = 0

    def read(self, now: Micros) -> EngineReading:
        """Return the reading that the instance would publish."""
        instance = self.replica.instance
        # SLOTS comes after the turns of all instances, so steps that end now count.
        instance.commit_ended_steps(now)
        return EngineReading(
            instance.running, instance.waiting, instance.kv_usage, instance.num_preemptions, instance.num_steps
        )

    def update_pieces(self, now: Micros) -> None:
        """Note the tokens that answers have gained since the last look."""
        instance = self.replica.instance
        instance.commit_ended_steps(now)
        for request_id, request in self.requests.items():
            if request.pieces:  # The first token is told at its own instant.
                tokens = instance.sequence(request_id).num_output_tokens
                if tokens > request.pieces:
                    self.own.note_pieces(request, tokens, now)


class SimulatedSlots:
    """The controllers of all instances, and the events that drive them."""

    def __init__(
        self, fleet: SimulatedFleet, driver: AdmissionDriver, event_queue: EventQueue, log: DecisionLog | None
    ) -> None:
        self._fleet, self._driver = fleet, driver
        self._event_queue = event_queue
        self._engines = [_LearnedEngine(replica, SlotController(backend=replica.index, log=log)) for replica in fleet.replicas]
        self._is_ticking = False

    def on_sent(self, request: Request, replica: Replica, now: Micros) -> None:
        """Count a request that is routed to `replica`, and begin to look if none was in flight."""
        engine = self._engines[replica.index]
        engine.requests[request.id] = engine.own.add(request.prompt_tokens, request.stream, now)
        if not self._is_ticking:
            self._is_ticking = True
            self._event_queue.push(now + TICK_INTERVAL, SimEventKind.SLOTS)

    def on_first_token(self, request: Request, replica: Replica, now: Micros) -> None:
        """Note the first token of a request."""
        engine = self._engines[replica.index]
        engine.own.note_pieces(engine.requests[request.id], 1, now)

    def on_left(self, request: Request, replica: Replica, now: Micros, output_tokens: int | None = None) -> None:
        """Stop counting a request. `output_tokens` is the length of its answer, or None if it was not completed."""
        engine = self._engines[replica.index]
        own = engine.requests.pop(request.id, None)
        if own is not None:
            if output_tokens is not None:
                own.pieces = output_tokens
            engine.own.remove(own, now, completed=output_tokens is not None)

    def on_due(self, now: Micros) -> None:
        """Look at all instances, set the slots, and schedule the next look while any request is in flight."""
        demand, changed = self._demand(), False
        for engine in self._engines:
            if engine.requests:
                changed = self._look(engine, demand, now) or changed
        if changed:
            controllers = [engine.controller for engine in self._engines]
            slots = self._fleet.slots = [controller.slots for controller in controllers]
            self._driver.resize(sum(slots), now, sum_leads(c.lead for c in controllers))
        busy = [engine.controller.look_interval for engine in self._engines if engine.requests]
        self._is_ticking = bool(busy)
        if busy:
            self._event_queue.push(now + min(busy), SimEventKind.SLOTS)

    def _look(self, engine: _LearnedEngine, demand: PoolDemand, now: Micros) -> bool:
        """Look at one instance. Return whether its slots have changed."""
        controller = engine.controller
        is_reading = now >= engine.next_reading
        if not (is_reading or controller.wants_ticks):
            return False
        engine.update_pieces(now)
        own, share = engine.own.summary(now, is_reading=is_reading), self._share_of(engine, demand)
        lead = controller.lead
        if not is_reading:
            return controller.on_tick(own, share, now) is not None or controller.lead != lead
        decision = controller.on_reading(engine.read(now), own, share, now)
        engine.next_reading = now + (controller.reading_due_in(own.in_flight, wanted=demand.wanted) or 0)
        return decision is not None or controller.lead != lead

    def _demand(self) -> PoolDemand:
        """Return the demand for the slots of all models: the most that any of them has held back."""
        demands = [self._driver.core.demand(model) for model in self._driver.known_models]
        keeps_lead = len(demands) == len(self._engines) == 1 and demands[0].keeps_lead
        return PoolDemand(any(d.wanted for d in demands), max((d.held for d in demands), default=0), keeps_lead)

    def _share_of(self, engine: _LearnedEngine, demand: PoolDemand) -> PoolDemand:
        total = sum(other.controller.slots for other in self._engines)
        return msgspec.structs.replace(demand, held=round(demand.held * engine.controller.slots / total))


def make_slot_learning(
    cluster: ClusterConfig,
    fleet: SimulatedFleet,
    driver: AdmissionDriver | None,
    event_queue: EventQueue,
    log: DecisionLog | None,
) -> SimulatedSlots | None:
    """Return the controllers of the slots, or None if they are told. Raises ConfigError where slots are no limit."""
    if cluster.slots != "learned":
        return None
    config = None if driver is None else driver.core.config
    if driver is None or config is None or config.mode != "priority" or config.slot_cost == "tokens":
        what = "learned slots need admission with classes, and slots that count requests"
        raise ConfigError(what, where="cluster.slots", hint="admission.mode: priority, and slot_cost: requests")
    if cluster.disaggregation:
        raise ConfigError("slots cannot be learned with disaggregation", where="cluster.slots", hint="slots: reported")
    return SimulatedSlots(fleet, driver, event_queue, log)
