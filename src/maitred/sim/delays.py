"""Delays: how long a request is on its way to a wait queue, and where it is checked whether it can run at all."""

from __future__ import annotations

from enum import Enum

import msgspec

from maitred.contracts import Overheads
from maitred.instance import InstanceConfig
from maitred.sim.config import ClusterConfig
from maitred.units import Micros, from_ms


class Checks(Enum):
    """When it is found out that a request can never run, or that its time is up."""

    AT_ONCE = "wherever it is"
    INSIDE = "in its instance only, as in BLIS"


class Delays(msgspec.Struct, frozen=True):
    """What it takes until a request stands in a wait queue. None: no time at all, and the next thing is done at once; 0: none
    either, but what is due at this instant comes first."""

    admission: Micros | None = None
    routing: Micros | None = None
    entry: Overheads | None = None
    checks: Checks = Checks.AT_ONCE


def delays(cluster: ClusterConfig, instance: InstanceConfig) -> Delays:
    """What `cluster` and the latency model of `instance` say. In BLIS all who arrive at an instant are admitted before any of
    them is routed, and routed before any stands in a wait queue, so there even no time at all is a station."""
    entry = instance.latency_model().overheads
    before = from_ms(cluster.admission_latency_ms), from_ms(cluster.routing_latency_ms)
    if instance.flavour == "blis":
        return Delays(*before, entry, Checks.INSIDE)
    takes_time = entry.queueing or entry.queueing_per_token
    return Delays(before[0] or None, before[1] or None, entry if takes_time else None)
