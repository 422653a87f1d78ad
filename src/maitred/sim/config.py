"""The cluster that is simulated."""

from __future__ import annotations

import msgspec

from maitred.admission.config import MOST_SLOTS

MOST_INSTANCES = 10_000
"""A guard against slips of the keyboard, beyond any fleet behind one router."""
_HOUR_MS = 3_600_000
_DURATIONS = ("admission_latency_ms", "routing_latency_ms", "snapshot_refresh_interval_ms", "cache_signal_delay_ms")


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal instances behind one router; what each is made of says the `instance` section."""

    num_instances: int = 1
    capacity: int | None = None
    """Slots per model of the admission in front of the router; None: as many as the batches of all instances hold."""

    admission_latency_ms: float = 0.0
    """From the arrival of a request until admission decides about it."""
    routing_latency_ms: float = 0.0
    """From admission until an instance is chosen."""
    snapshot_refresh_interval_ms: float = 0.0
    """How old what routers and admission see of queues, batches and KV usage may be; 0: never."""
    cache_signal_delay_ms: float = 0.0
    """Likewise what they see of prefix caches."""

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            if not 0 <= getattr(self, name) <= _HOUR_MS:
                raise ValueError(f"{name} must be from 0 to {_HOUR_MS:,} (an hour), not {getattr(self, name)}")
        if not 1 <= self.num_instances <= MOST_INSTANCES:
            raise ValueError(f"num_instances must be from 1 to {MOST_INSTANCES:,}, not {self.num_instances}")
        if self.capacity is not None and not 1 <= self.capacity <= MOST_SLOTS:
            raise ValueError(f"capacity must be from 1 to {MOST_SLOTS:,} slots, not {self.capacity}")
