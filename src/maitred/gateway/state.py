"""What the gateway looks like now: for /maitred/state, /health, /ready, metrics and tests."""

from __future__ import annotations

import msgspec

from maitred.gateway.fleet import Source


class ClassState(msgspec.Struct):
    """One class, over all pools. All counts are requests; from `arrived` on they only grow."""

    waiting: int = 0
    in_flight: int = 0
    queue_size: int = 0
    """How many may wait, in sum."""
    reserved: int = 0
    """Slots, after scaling down."""
    desired: int = 0
    """Slots, as configured."""
    pressure: float = 0.0
    """0 to 1, of the pool where it is highest."""
    arrived: int = 0
    admitted: int = 0
    completed: int = 0
    failed: int = 0
    client_gone: int = 0
    """Left while it held a slot."""
    preempted: int = 0
    """Lost its slot for good."""
    cancelled: int = 0
    """Left while it waited for one."""
    queue_full: int = 0
    tenant_queue_full: int = 0
    queue_timeout: int = 0
    refused: dict[str, int] = {}
    """By admission policies and flow control, by reason; those that came to pass."""
    rejected: int = 0
    """queue_full + tenant_queue_full + queue_timeout + the sum of refused"""
    rate_limited: int = 0
    """Not counted in `arrived`."""
    promoted: int = 0
    retried: int = 0
    preempted_by: dict[str, int] = {}
    """Victims, by the class that wanted their slot; those that were tried again as well."""


class PoolState(msgspec.Struct):
    capacity: int | None
    """Slots; null: no limit."""
    in_flight: int
    waiting: int
    reserved: dict[str, int]
    """Slots by class, after scaling down."""
    desired: dict[str, int]
    """Slots by class, as configured."""


class ModelState(msgspec.Struct):
    slots: int
    """What the healthy backends of the model offer."""
    source: Source
    """How that is known."""


class BackendState(msgspec.Struct):
    url: str
    healthy: bool
    in_flight: int
    models: list[str]
    problem: str
    slots: int
    """Requests that it may have in flight, for each model."""
    source: Source
    """How that is known."""


class TenantState(msgspec.Struct):
    in_flight: int = 0
    waiting: int = 0


class GatewayState(msgspec.Struct):
    ready: bool
    mode: str
    """Of admission: `off`, `legacy`, `priority` or `flow-control`."""
    config_fallback: str | None
    """Why the mode is not the configured one; null: it is."""
    capacity: int | None
    """Slots of all pools; null: no limit."""
    in_flight: int
    waiting: int
    classes: dict[str, ClassState]
    pools: dict[str, PoolState]
    """By model; one for all, `*`, in modes off and legacy."""
    models: dict[str, ModelState]
    tenants: dict[str, TenantState]
    """Those that have requests here; the last is `other` if there are many."""
    backends: list[BackendState]
    parked_body_bytes: int
    """Of all request bodies that are being read or kept."""
    decision_log_failed: bool
    """Whether decisions are recorded no more, though they should be."""
