"""How saturated are the instances? What each detector makes of their load; 1 is what they are meant to carry.

A detector reads a load once, and then says what it comes to with so many requests more than the load shows: those that have
just been let in, and are on their way. Instances that are not there are saturated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from maitred.admission.flow_control.config import Detector, FlowControlConfig
from maitred.admission.saturation import utilization
from maitred.contracts import FleetLoad

Gauge: TypeAlias = Callable[[int], float]
"""Saturation by the number of requests that the load does not show yet."""
Reader: TypeAlias = Callable[[FleetLoad, FlowControlConfig], Gauge]


def _never(load: FleetLoad, config: FlowControlConfig) -> Gauge:
    return lambda unseen: 0.0


def _concurrency(load: FleetLoad, config: FlowControlConfig) -> Gauge:
    """Requests in flight, by those that all instances may have."""
    in_flight, most = in_flight_of(load), len(load.instances) * config.max_concurrency
    return lambda unseen: (in_flight + unseen) / most if most else 1.0


def _utilization(load: FleetLoad, config: FlowControlConfig) -> Gauge:
    """GAIE's average over the instances, where whoever is on his way is taken to wait there."""
    seen = utilization(load, config.queue_depth_threshold, config.kv_cache_util_threshold)
    most = len(load.instances) * config.queue_depth_threshold
    return lambda unseen: seen + unseen / most if most else seen


def in_flight_of(load: FleetLoad) -> int:
    """Over all instances."""
    return sum(instance.in_flight for instance in load.instances)


READERS: Final[Mapping[Detector, Reader]] = {"never": _never, "concurrency": _concurrency, "utilization": _utilization}
