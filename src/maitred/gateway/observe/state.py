"""What the gateway counts, and what it looks like at one instant: for /maitred/state, /ready, metrics and tests.

The gateway counts beside the counters of admission, by plain additions, since most of them happen for every request.

Snapshots (`state_snapshots`) are of these structs. Their field names are those of `GET /maitred/state`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

import msgspec

from maitred.admission.learned_slots import SlotReason, SlotState
from maitred.admission.terms.tenants import KEY_TENANT_PREFIX
from maitred.scheduler.interface import CircuitState, SlotSource

OTHER_TENANTS = "other"
"""The label of all tenants without a label of their own."""


class GatewayCounters:
    """Everything that is counted per request."""

    def __init__(self, max_tenant_labels: int = 32) -> None:
        """The first `max_tenant_labels` tenants get labels of their own: clients may invent tenants, and metrics stay few."""
        self.unknown_class: Counter[str] = Counter()
        """Requests with a priority header that names no class, by the label of the tenant."""
        self.clamped_classes: Counter[tuple[str, str, str]] = Counter()
        """Requests that got a lower class than they asked for, by label of the tenant, requested and effective class."""
        self.refused_before_admission: Counter[str] = Counter()
        """Requests refused before admission, by error code."""
        self.upstream_failures: Counter[str] = Counter()
        """Attempts at a backend that failed, by reason."""
        self.spans: Counter[str] = Counter()
        """Spans of traces that were `exported`, and `dropped`."""
        self.unreadable_answers: Counter[str] = Counter()
        """Answers that were compressed, though plain ones were asked for, and passed unread; by the URL of the backend."""
        self.retries = 0
        """Attempts after one that failed before the first byte."""
        self.retries_over_budget = 0
        """Requests not sent once more because the retry budget was spent."""
        self.reloads: Counter[str] = Counter()
        """Reloads of the configuration, by result: `ok`, `failed`."""
        self.refused_by_tenant: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Requests that the gateway has answered with an error, by tenant and code. Tenants with a key are as many as are
        configured, and have their own names here; others are under their labels."""
        self._max_tenant_labels = max_tenant_labels
        self._labelled: set[str] = set()

    def tenant_label(self, tenant: str) -> str:
        """Return the label of `tenant`: its own name, or `other`."""
        if tenant in self._labelled:
            return tenant
        if len(self._labelled) >= self._max_tenant_labels:
            return OTHER_TENANTS
        self._labelled.add(tenant)
        return tenant

    def count_refusal(self, tenant: str, code: str) -> None:
        """Count a request that the gateway has answered with an error."""
        self.refused_by_tenant[self.own_name(tenant)][code] += 1

    def refusals_of(self, tenant: str) -> dict[str, int] | None:
        """Return the refusals of a tenant by code, or None if they are counted with those of others."""
        name = self.own_name(tenant)
        return None if name == OTHER_TENANTS else dict(self.refused_by_tenant.get(name, {}))

    def refusals_by_label(self) -> Counter[tuple[str, str]]:
        """Return all refusals by label of the tenant and code."""
        found: Counter[tuple[str, str]] = Counter()
        for name, codes in self.refused_by_tenant.items():
            label = self.tenant_label(name)
            for code, n in codes.items():
                found[label, code] += n
        return found

    def own_name(self, tenant: str) -> str:
        """Return the name under which the refusals of `tenant` are counted."""
        return tenant if tenant.startswith(KEY_TENANT_PREFIX) else self.tenant_label(tenant)


class ClassState(msgspec.Struct):
    """One class, over all pools. All counts are requests; from `arrived` on they only grow. See `admission.counters`."""

    waiting: int = 0
    in_flight: int = 0
    queue_size: int = 0
    """The largest number of requests that may wait, over all pools."""
    reserved: int = 0
    """Slots reserved, after scaling down."""
    held: int = 0
    """Idle slots that are held back for it now."""
    desired: int = 0
    """Slots reserved, as configured."""
    pressure: float = 0.0
    """How full the class is, 0 to 1, in the pool where it is fullest."""
    arrived: int = 0
    admitted: int = 0
    completed: int = 0
    failed: int = 0
    client_gone: int = 0
    """Requests that held a slot when their client disconnected."""
    preempted: int = 0
    """Requests that lost their slot for good."""
    cancelled: int = 0
    """Requests that waited for a slot when their client disconnected."""
    queue_full: int = 0
    tenant_queue_full: int = 0
    queue_timeout: int = 0
    refused: dict[str, int] = {}
    """Requests refused by admission policies and flow control, by reason, without the reasons that never occurred."""
    rejected: int = 0
    """queue_full + tenant_queue_full + queue_timeout + the sum of refused"""
    rate_limited: int = 0
    """Requests that the rate limit stopped; not counted in `arrived`."""
    promoted: int = 0
    retried: int = 0
    preempted_by: dict[str, int] = {}
    """Victims of a preemption, by the class of the preemptor; those that waited again as well."""


class PoolState(msgspec.Struct):
    """One pool of slots."""

    capacity: int | None
    """Slots; null if there is no limit."""
    in_flight: int
    waiting: int
    reserved: dict[str, int]
    """Slots reserved by class, after scaling down."""
    held: dict[str, int]
    """Idle slots that are held back by class now."""
    desired: dict[str, int]
    """Slots reserved by class, as configured."""
    held_by: dict[str, int]
    """Requests by class that hold a slot."""
    waiting_by: dict[str, int]
    """Requests by class that wait for one."""


class ModelState(msgspec.Struct):
    """The slots of one model."""

    slots: int
    """Slots that the healthy backends of the model offer."""
    source: SlotSource
    """Where this number comes from."""


class LearnedState(msgspec.Struct):
    """Learned slots of one backend."""

    state: SlotState
    limit: int | None
    """Requests that the engine runs at once, or null while that is not known."""
    least: int
    most: int
    """The bounds of the slots."""
    last_change: SlotReason | None
    """Why the slots last changed, or null if they never did."""
    changed_secs_ago: float | None


class LoadState(msgspec.Struct):
    """The load that a backend has last reported, as routing and learned slots see it."""

    running: int
    waiting: int | None
    """Requests in its own queue, or null if what it says of them makes no sense."""
    kv_usage: float | None
    """Share of its KV memory in use, 0 to 1, or null if it is not reported."""


class EjectionState(msgspec.Struct):
    """What the answers of one backend have come to. See `scheduler.ejection`."""

    state: CircuitState
    failures_in_a_row: int
    ejections_in_a_row: int
    until_secs: float | None
    """Seconds until an ejected backend is half-open, or null if it is not ejected."""
    rests_secs: float | None
    """Seconds for which the engine has asked to be left alone (`Retry-After`), or null."""


class BackendState(msgspec.Struct):
    """One backend."""

    url: str
    healthy: bool
    in_flight: int
    models: list[str]
    problem: str
    draining: bool
    """Whether nothing more is sent to it: an operator wants that, or no source lists it any more."""
    slots: int | None
    """Requests that the backend may have in flight, for each model; null where a scheduler in another process knows."""
    source: SlotSource
    """Where this number comes from, or `scheduler`."""
    learned: LearnedState | None
    """What is believed and why, if the slots are learned."""
    connections: int
    """Open connections to it, idle or not."""
    load: LoadState | None
    """What it last reported of its load, or null if it reports none or nothing reads it."""
    ejection: EjectionState
    sources: list[str]
    """What lists it: `config`, `admin`, or a source of `gateway.discover`; empty for one that is about to go, and where another
    process finds backends."""


class DiscoveryState(msgspec.Struct):
    """One source of `gateway.discover`."""

    source: str
    backends: int
    """Backends that it lists, as far as that is believed."""
    problem: str | None
    """Why it cannot be asked; null if it can."""
    doubted: int | None
    """Backends in a list that is not believed yet; null if there is none."""


class TenantRequests(msgspec.Struct):
    """The requests that one tenant has now."""

    in_flight: int = 0
    waiting: int = 0


class LinkedGatewayState(msgspec.Struct):
    """One gateway, as its scheduler knows it."""

    name: str
    connected: bool
    """Whether it has a link now. One that has none is listed as long as its requests may hold slots."""
    in_flight: int
    """Slots that its requests hold."""
    waiting: int
    heard_secs_ago: float
    """Seconds since its last beat."""


class ClusterState(msgspec.Struct):
    """One end of the link between a scheduler and its gateways."""

    role: Literal["scheduler", "gateway"]
    name: str
    mode: str
    """Of a scheduler `standby`, `learning` or `leading`; of a gateway `linked`, `waiting`, `share` or `closed`."""
    epoch: int
    """The epoch under which it leads, or the highest of which it knows."""
    leader: str | None
    """The address of the scheduler that leads, as far as is known."""
    problem: str | None
    """Why there is no link, or why the election cannot be asked; null if nothing is wrong."""
    lease_secs: float | None = None
    """Of a gateway: seconds for which it may start requests without another answer, or null without a link."""
    gateways: list[LinkedGatewayState] = []
    """Of a scheduler that leads: its gateways. Of a gateway of several workers: these, and whether each has a link to it."""


class GatewayState(msgspec.Struct):
    """The whole gateway."""

    ready: bool
    """Whether a backend is healthy."""
    mode: str
    """The mode of admission: `off`, `legacy`, `priority` or `flow-control`."""
    config_fallback: str | None
    """Why the mode is not the configured one; null if it is."""
    capacity: int | None
    """Slots of all pools; null if there is no limit."""
    in_flight: int
    waiting: int
    classes: dict[str, ClassState]
    pools: dict[str, PoolState]
    """The pools by model; modes off and legacy have one pool for all models, `*`."""
    models: dict[str, ModelState]
    tenants: dict[str, TenantRequests]
    """The tenants that have requests here; tenants without a label of their own are `other`."""
    backends: list[BackendState]
    num_connections: int
    """Connections of clients, idle or not."""
    num_evicted_connections: int
    """Idle connections of clients that were closed because descriptors were short."""
    parked_body_bytes: int
    """Size of all request bodies that are being read or kept."""
    is_out_of_descriptors: bool
    """Whether this process had no file descriptor left at the last look: new connections are dropped then."""
    decision_log_failed: bool
    """Whether a failure, or a line that had to be dropped, has ended the decision log."""
    dropped_lines: dict[str, int]
    """Lines that were not written to the files `decision_log` and `record`."""
    discovery: list[DiscoveryState]
    """The sources of `gateway.discover`."""
    cluster: ClusterState | None = None
    """The link between schedulers and gateways; null where one process schedules and serves."""
