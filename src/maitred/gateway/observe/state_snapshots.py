"""What the gateway looks like, summed up from the counters of the core, the fleet and the requests that are here.

A snapshot is taken in steps, between which requests come and go: each model (its pool and what its classes count), each backend
and each request is looked at once, at an instant of its own. So the law of each class holds (`metrics`), and `in_flight` and
`waiting` are the sums over the models, but what runs at the backends or belongs to tenants may differ from these by what has
happened within the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from maitred.admission import ClassView, PoolView, ReleaseReason
from maitred.admission.learned_slots import SlotController
from maitred.admission.terms.config import MAX_SLOTS
from maitred.core.request import PriorityClass
from maitred.core.steps import Steps, in_batches
from maitred.core.units import Micros, to_seconds
from maitred.gateway.bodies.body_budget import BodyBudget
from maitred.gateway.observe.descriptor_watch import DescriptorWatch
from maitred.gateway.observe.outputs import GatewayOutputs
from maitred.gateway.observe.state import (
    BackendState,
    ClassState,
    ClusterState,
    DiscoveryState,
    EjectionState,
    GatewayCounters,
    GatewayState,
    LearnedState,
    LoadState,
    ModelState,
    PoolState,
    TenantRequests,
)
from maitred.scheduler.interface import Backend, Circuit, CircuitState, Scheduler
from maitred.wire.client import UpstreamClient
from maitred.wire.server_context import ServerContext


class Snapshot(NamedTuple):
    """What a gateway looks like."""

    state: GatewayState
    classes: Mapping[PriorityClass, ClassView]
    """What each class has counted over all models, with its distributions; most urgent first."""


_BACKENDS_IN_STEP: Final = 16
_MODELS_IN_STEP: Final = 16
_LEASES_IN_STEP: Final = 500


class StateSnapshots:
    """Takes snapshots of a gateway, in steps."""

    def __init__(
        self,
        scheduler: Scheduler,
        client: UpstreamClient,
        counters: GatewayCounters,
        budget: BodyBudget,
        descriptors: DescriptorWatch,
        outputs: GatewayOutputs,
    ) -> None:
        self.server: ServerContext | None = None
        """The server in front of the gateway; None before it serves."""
        self.cluster: Callable[[], ClusterState] | None = None
        """Returns how the link to other processes is; None if there is none."""
        self._client = client
        self._admission = scheduler.admission
        self._fleet = scheduler.fleet
        self._scheduler = scheduler
        self._counters = counters
        self._budget, self._descriptors, self._outputs = budget, descriptors, outputs

    @property
    def is_draining(self) -> bool:
        """Whether the gateway is about to end."""
        return self.server is not None and self.server.is_draining

    def take(self) -> Steps[Snapshot]:
        """Return in steps the state, and what classes count. O(requests that are here)."""
        core, fleet = self._admission.core, self._fleet
        survey = yield from core.survey()
        pools = {name: _pool_state(view) for name, view in survey.pools.items()}
        yield
        models = yield from self._models()
        tenants = yield from self._tenants()
        backends = yield from self.backends()
        state = GatewayState(
            ready=any(backend.healthy for backend in fleet.backends),
            mode=core.config.mode,
            config_fallback=self._scheduler.fallback,
            capacity=_total_capacity(pools),
            in_flight=sum(pool.in_flight for pool in pools.values()),
            waiting=sum(pool.waiting for pool in pools.values()),
            classes={c.label: of_class for c, of_class in class_states(survey.classes).items()},
            pools=pools,
            models=models,
            tenants=tenants,
            backends=backends,
            num_connections=0 if self.server is None else len(self.server.connections),
            num_evicted_connections=0 if self.server is None else self.server.num_evicted,
            parked_body_bytes=self._budget.parked_bytes,
            is_out_of_descriptors=self._descriptors.is_exhausted,
            decision_log_failed=self._outputs.decision_log_failed,
            dropped_lines=self._outputs.dropped_lines(),
            discovery=self._sources(),
            cluster=None if self.cluster is None else self.cluster(),
        )
        return Snapshot(state, survey.classes)

    def backends(self) -> Steps[list[BackendState]]:
        """Return in steps what the backends look like, each at an instant of its own."""
        states: list[BackendState] = []
        for some in in_batches(self._fleet.backends, _BACKENDS_IN_STEP):
            states += map(self._backend, some)
            yield
        return states

    def _models(self) -> Steps[dict[str, ModelState]]:
        states, pools, told = {}, self._fleet.pools, self._scheduler.told_slots
        for some in in_batches(self._fleet.known_models, _MODELS_IN_STEP):
            for model in some:
                pool = pools.pool_of(model)
                slots = pools.offered_slots(pool)
                own = ModelState(slots.slots, slots.source)
                states[model] = own if told is None else ModelState(told.get(pool, 0), "scheduler")
            yield
        return states

    def _tenants(self) -> Steps[dict[str, TenantRequests]]:
        tenants: dict[str, TenantRequests] = {}
        for some in in_batches(self._admission.leases, _LEASES_IN_STEP):
            for lease in some:
                tenant = tenants.setdefault(self._counters.tenant_label(lease.request.tenant), TenantRequests())
                tenant.waiting += lease.is_waiting
                tenant.in_flight += not lease.is_waiting
            yield
        return tenants

    def _backend(self, b: Backend) -> BackendState:
        slots = self._fleet.pools.backend_slots(b)
        learned = None if b.learned_slots is None else _learned_state(b.learned_slots, self._admission.clock.now())
        own = (b.url, b.healthy, len(b.requests), list(b.models), b.problem, b.is_draining)
        load = b.load or b.reading
        running = None if load is None else load.running
        seen = None if load is None or running is None else LoadState(running, load.waiting, load.kv_usage)
        ejection = _ejection_state(b.circuit, self._admission.clock.now())
        connections, discovery = self._client.num_connections(b.origin), self._scheduler.discovery
        sources = [] if discovery is None else discovery.sources_of(b.url)
        state = BackendState(*own, slots.slots, slots.source, learned, connections, seen, ejection, sources)
        if self._scheduler.told_slots is not None:
            state.slots, state.source = None, "scheduler"
        return state

    def _sources(self) -> list[DiscoveryState]:
        discovery = self._scheduler.discovery
        if discovery is None:
            return []
        return [
            DiscoveryState(s.name, discovery.num_listed(s.name), s.problem, discovery.num_doubted(s.name))
            for s in discovery.sources
        ]


def _ejection_state(circuit: Circuit, now: Micros) -> EjectionState:
    ends = (circuit.until if circuit.state is CircuitState.EJECTED else None, circuit.rests_until)
    until, rests = (None if end is None else round(max(0.0, to_seconds(end - now)), 3) for end in ends)
    return EjectionState(circuit.state, circuit.consecutive_failures, circuit.num_ejections, until, rests)


def _learned_state(slots: SlotController, now: Micros) -> LearnedState:
    ago = None if slots.changed_at is None else round(to_seconds(now - slots.changed_at), 3)
    return LearnedState(slots.state, slots.limit, slots.least, slots.most, slots.last_reason, ago)


def class_states(views: Mapping[PriorityClass, ClassView]) -> dict[PriorityClass, ClassState]:
    """Return each class, most urgent first."""
    return {c: _class_state(views[c]) if c in views else ClassState() for c in sorted(PriorityClass, reverse=True)}


def _class_state(view: ClassView) -> ClassState:
    return ClassState(
        waiting=view.waiting,
        in_flight=view.in_flight,
        queue_size=view.queue_size,
        reserved=view.reserved,
        held=view.held,
        desired=view.desired,
        pressure=view.pressure,
        arrived=view.arrived,
        admitted=view.admitted,
        completed=view.ended[ReleaseReason.DRAINED],
        failed=view.ended[ReleaseReason.FAILED] + view.ended[ReleaseReason.GATEWAY_GONE],
        client_gone=view.ended[ReleaseReason.CLIENT_GONE],
        preempted=view.ended[ReleaseReason.SLOT_PREEMPTED],
        cancelled=view.cancelled,
        queue_full=view.queue_full,
        tenant_queue_full=view.tenant_queue_full,
        queue_timeout=view.queue_timeout,
        refused={str(reason): n for reason, n in view.refused.items() if n},
        rejected=view.rejected,
        rate_limited=view.rate_limited,
        promoted=view.promoted,
        retried=view.retried,
        preempted_by={c.label: victims for c, victims in view.preempted_by.items()},
    )


def _pool_state(view: PoolView) -> PoolState:
    return PoolState(
        capacity=None if view.capacity >= MAX_SLOTS else view.capacity,
        in_flight=view.in_flight,
        waiting=view.waiting,
        reserved={c.label: of_class.reserved for c, of_class in view.classes.items()},
        held={c.label: of_class.held for c, of_class in view.classes.items()},
        desired={c.label: of_class.desired for c, of_class in view.classes.items()},
        held_by={c.label: of_class.in_flight for c, of_class in view.classes.items()},
        waiting_by={c.label: of_class.waiting for c, of_class in view.classes.items()},
    )


def _total_capacity(pools: Mapping[str, PoolState]) -> int | None:
    limits = [pool.capacity for pool in pools.values() if pool.capacity is not None]
    return sum(limits) if len(limits) == len(pools) else None
