"""How saturated are the instances behind a pool? 1 is what they are meant to carry, and none at all are saturated.

How saturated are the instances? What each detector makes of their load; 1 is what they are meant to carry.

A detector reads a load once, and then says what it comes to with so many requests more than the load shows: those that have
just been let in, and are on their way. Instances that are not there are saturated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from maitred.admission.flow_control.config import DetectorName, FlowControlConfig
from maitred.core.contracts import FleetLoad, InstanceLoad, InstanceView


def utilization(load: FleetLoad, queue_depth: float, kv_usage: float) -> float:
    """On average over the instances: waiting requests by `queue_depth`, or used share of the KV blocks by `kv_usage`, whichever
    is more (GAIE's saturation detector, as BLIS has it)."""
    instances = load.instances
    if not instances:
        return 1.0
    return sum(max(i.waiting / queue_depth, i.kv_usage / kv_usage) for i in instances) / len(instances)


def fleet_load(views: Sequence[InstanceView]) -> FleetLoad:
    """What admission may know of the instances that a router sees. O(instances)."""
    return FleetLoad(tuple(InstanceLoad(v.in_flight, v.waiting, v.running, v.kv_usage, v.index) for v in views))


SaturationGauge: TypeAlias = Callable[[int], float]
"""Saturation by the number of requests that the load does not show yet."""
SaturationDetector: TypeAlias = Callable[[FleetLoad, FlowControlConfig], SaturationGauge]


def _never_saturated(load: FleetLoad, config: FlowControlConfig) -> SaturationGauge:
    return lambda unseen: 0.0


def _by_concurrency(load: FleetLoad, config: FlowControlConfig) -> SaturationGauge:
    """Requests in flight, by those that all instances may have."""
    in_flight, most = total_in_flight(load), len(load.instances) * config.max_concurrency
    return lambda unseen: (in_flight + unseen) / most if most else 1.0


def _by_utilization(load: FleetLoad, config: FlowControlConfig) -> SaturationGauge:
    """GAIE's average over the instances, where whoever is on his way is taken to wait there."""
    seen = utilization(load, config.queue_depth_threshold, config.kv_cache_util_threshold)
    most = len(load.instances) * config.queue_depth_threshold
    return lambda unseen: seen + unseen / most if most else seen


def total_in_flight(load: FleetLoad) -> int:
    """Over all instances."""
    return sum(instance.in_flight for instance in load.instances)


SATURATION_DETECTORS: Final[Mapping[DetectorName, SaturationDetector]] = {
    "never": _never_saturated,
    "concurrency": _by_concurrency,
    "utilization": _by_utilization,
}
