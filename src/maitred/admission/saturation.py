"""How saturated are the instances behind a pool? 1 is what they are meant to carry, and none at all are saturated."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.contracts import FleetLoad, InstanceLoad, InstanceView


def utilization(load: FleetLoad, queue_depth: float, kv_usage: float) -> float:
    """On average over the instances: waiting requests by `queue_depth`, or used share of the KV blocks by `kv_usage`, whichever
    is more (GAIE's saturation detector, as BLIS has it)."""
    instances = load.instances
    if not instances:
        return 1.0
    return sum(max(i.waiting / queue_depth, i.kv_usage / kv_usage) for i in instances) / len(instances)


def load_of(views: Sequence[InstanceView]) -> FleetLoad:
    """What admission may know of the instances that a router sees. O(instances)."""
    return FleetLoad(tuple(InstanceLoad(v.in_flight, v.waiting, v.running, v.kv_usage, v.index) for v in views))
