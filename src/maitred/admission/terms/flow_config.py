"""The keys of `admission.flow_control`, named after BLIS's flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from math import isfinite
from typing import Final, Literal, TypeAlias

import msgspec

DetectorName: TypeAlias = Literal["never", "utilization", "concurrency"]
DispatchOrder: TypeAlias = Literal["priority", "fifo", "slo-deadline"]
FairnessName: TypeAlias = Literal["global-strict", "round-robin"]
DispatchMode: TypeAlias = Literal["all", "one"]
MAX_WAITING = 1_000_000_000
_MAX_US = 10**15


class FairnessPolicy(Enum):
    """Which flows (queues) the requests of one band wait in, and which flow is served next."""

    GLOBAL_STRICT = "one flow for all tenants"
    OLDEST_TENANT = "one flow per tenant; next is the tenant of the oldest request, though another request of it may go (BLIS)"
    ROUND_ROBIN = "one flow per tenant, each in turn, in the order of their names"
    ROUND_ROBIN_RESTARTING = "the same, but from the first name again if the flow served last is empty now (BLIS)"


class FlowControlConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When requests wait in front of the fleet, and which enters next. Raises ValueError for a value that is out of range."""

    saturation_detector: DetectorName | None = None
    """What tells how saturated the instances are: `concurrency`, requests in flight; `utilization`, waiting requests and KV
    blocks; `never`. Null: `concurrency` (blis: `never`)."""
    max_concurrency: int = 100
    """`concurrency`: requests in flight per instance at which the saturation is 1. `utilization`: the same for an instance that
    does not report its load."""
    queue_depth_threshold: float = 5.0
    """`utilization`: waiting requests at which the saturation of an instance is 1."""
    kv_cache_util_threshold: float = 0.8
    """`utilization`: used share of its KV blocks at which the saturation of an instance is 1."""
    usage_limit_threshold: float = 1.0
    """Saturation from which on the lowest band waits. The highest waits from 1 on, those between in even steps."""
    dispatch_order: DispatchOrder = "priority"
    """Which band is served first of those that may go in: `priority`, the most urgent; `fifo`, the one with the next request
    that arrived first; `slo-deadline`, the one with the next request that is due first."""
    fairness_policy: FairnessName = "global-strict"
    """Order within a band: `global-strict`, one queue for all tenants; `round-robin`, each tenant in turn."""
    dispatch: DispatchMode | None = None
    """Requests that go in at a time: `all` that may, or `one` at each arrival and tick. Null: `all` (blis: `one`)."""
    dispatch_tick_interval_us: int = 1000
    """Interval in µs at which saturation is probed while requests wait."""
    max_gateway_queue_depth: int = 0
    """Requests that may wait for each model; 0: no limit."""
    per_band_capacity: int = 0
    """Requests that may wait in each band; 0: no limit."""
    queue_shedding: bool = False
    """Whether a request that finds the queue full takes the place of the newest sheddable one of the lowest priority below its
    own."""
    request_ttl_us: int = 0
    """Longest wait of a request, in µs; 0: no limit."""
    in_flight_eviction: bool = False
    """Whether a sheddable request is stopped, before its response has started, when the instances are saturated and a request
    that is not sheddable waits."""

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise ValueError("max_concurrency must be at least 1 request per instance")
        if not (self.queue_depth_threshold > 0 and isfinite(self.queue_depth_threshold)):
            raise ValueError("queue_depth_threshold must be more than 0")
        for name in ("kv_cache_util_threshold", "usage_limit_threshold"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        if not 1 <= self.dispatch_tick_interval_us <= _MAX_US:
            raise ValueError("dispatch_tick_interval_us must be at least 1 µs")
        if not 0 <= self.request_ttl_us <= _MAX_US:
            raise ValueError("request_ttl_us must be at least 0 µs")
        for name in ("max_gateway_queue_depth", "per_band_capacity"):
            if not 0 <= getattr(self, name) <= MAX_WAITING:
                raise ValueError(f"{name} must be from 0 to {MAX_WAITING:,}")
        if self.queue_shedding and not self.max_gateway_queue_depth:
            raise ValueError("queue_shedding has no effect without max_gateway_queue_depth")

    def ineffective_keys(self, detector: DetectorName) -> Iterator[str]:
        """Yield a line for each key of a detector that is not in force; `detector` is the one that is."""
        for key, default in _DEFAULTS.items():
            readers = [name for name, keys in _PARAMETERS.items() if key in keys]
            if detector not in readers and getattr(self, key) != default:
                yield f"{key} has no effect: the saturation detector is {detector}, not {' or '.join(readers)}"
        if self.saturation_detector == "never":
            yield "saturation_detector is never: no request ever waits"


_PARAMETERS: Final[Mapping[DetectorName, tuple[str, ...]]] = {
    "concurrency": ("max_concurrency",),
    "utilization": ("queue_depth_threshold", "kv_cache_util_threshold", "max_concurrency"),
}
_DEFAULTS: Final = {key: getattr(FlowControlConfig(), key) for keys in _PARAMETERS.values() for key in keys}
