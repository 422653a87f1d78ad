"""The cluster that is simulated."""

from __future__ import annotations

from typing import Literal

import msgspec

from maitred.admission.config import MOST_SLOTS
from maitred.routing import RoutingConfig

MOST_INSTANCES = 10_000
"""A guard against slips of the keyboard, beyond any fleet behind one router."""
_HOUR_MS = 3_600_000
_MOST_GB_S = 1_000_000
_MOST_BYTES = 1 << 30
_DURATIONS = ("admission_latency_ms", "routing_latency_ms", "snapshot_refresh_interval_ms", "cache_signal_delay_ms")


class DisaggregationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances for prompts and instances for answers (P/D), and the network between them."""

    prefill_instances: int = 0
    """The first so many instances compute prompts, ..."""
    decode_instances: int = 0
    """... the others answers. Both 0: every instance does everything."""
    decider: Literal["never", "always", "prefix-threshold"] = "always"
    """Which prompts a prefill instance computes; prefix-threshold: those of which more than `prefix_threshold` tokens are not
    cached in their decode instance."""
    prefix_threshold: int = 16
    transfer_bandwidth_gb_s: float = 25.0
    """Of the network, in GB/s (10⁹ bytes)."""
    transfer_base_ms: float = 0.05
    """What every transfer takes besides."""
    transfer_contention: bool = False
    """Transfers share the bandwidth: each has that which is left to it by those under way when it begins."""
    kv_bytes_per_token: float | None = None
    """None: as the instances' model has it."""
    prefill_scorers: str = ""
    """Choose the prefill instance by these scorers (routing policy weighted); empty: as `routing` says."""
    decode_scorers: str = ""

    def __post_init__(self) -> None:
        counts = (self.prefill_instances, self.decode_instances)
        if min(counts) < 0 or (max(counts) > 0 and min(counts) == 0):
            raise ValueError(f"prefill_instances and decode_instances are both at least 1, or both 0, not {counts}")
        if self.prefix_threshold < 0:
            raise ValueError(f"prefix_threshold must be at least 0, not {self.prefix_threshold}")
        if not 0 <= self.transfer_base_ms <= _HOUR_MS:
            raise ValueError(f"transfer_base_ms must be from 0 to {_HOUR_MS:,} (an hour), not {self.transfer_base_ms}")
        for name, most in (("transfer_bandwidth_gb_s", _MOST_GB_S), ("kv_bytes_per_token", _MOST_BYTES)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise ValueError(f"{name} must be above 0 and at most {most:,}, not {value}")
        for name in ("prefill_scorers", "decode_scorers"):
            try:
                RoutingConfig(policy="weighted", scorers=getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {str(error).removeprefix('scorers: ')}") from error

    def __bool__(self) -> bool:
        return self.prefill_instances > 0


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
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    """Prompts are computed in some instances, answers in others."""

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            if not 0 <= getattr(self, name) <= _HOUR_MS:
                raise ValueError(f"{name} must be from 0 to {_HOUR_MS:,} (an hour), not {getattr(self, name)}")
        if not 1 <= self.num_instances <= MOST_INSTANCES:
            raise ValueError(f"num_instances must be from 1 to {MOST_INSTANCES:,}, not {self.num_instances}")
        if self.capacity is not None and not 1 <= self.capacity <= MOST_SLOTS:
            raise ValueError(f"capacity must be from 1 to {MOST_SLOTS:,} slots, not {self.capacity}")
