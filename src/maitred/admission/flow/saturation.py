"""Saturation: how loaded the instances of a model are. 1 is the load that they are meant to carry.

A detector reads a load once and returns a gauge: the saturation by the number of requests that the load does not show,
because they were admitted a moment ago and are on their way to an instance.

    concurrency    (in flight + unseen) / (instances · max_concurrency)
    utilization    mean over instances of max(waiting / queue_depth_threshold, KV usage / kv_cache_util_threshold)

What an instance says of its queue is as old as the last look. Requests that have come and gone since are known
(`QueueEstimate`), so a place that becomes free is given away at once, and not only after the next look.

Example: 2 instances with 30 and 50 requests in flight, and max_concurrency 100. The gauge shows 80 / 200 = 0.4, and
0.45 with 10 unseen requests.

A fleet without instances is saturated. An instance that says neither what waits there nor how much of its KV memory is used
counts under `utilization` with what was sent there: in flight / max_concurrency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from maitred.admission.terms.flow_config import DetectorName, FlowControlConfig
from maitred.core.contracts import FleetLoad, InstanceLoad, InstanceView

SaturationGauge: TypeAlias = Callable[[int], float]
"""Returns the saturation for a number of requests that the load does not show."""
SaturationDetector: TypeAlias = Callable[[FleetLoad, FlowControlConfig], SaturationGauge]


def fleet_load(views: Sequence[InstanceView]) -> FleetLoad:
    """Return the load of the instances that a router sees, as admission may know it. O(instances)."""
    return FleetLoad(tuple(InstanceLoad(v.in_flight, v.waiting, v.running, v.kv_usage, v.index) for v in views))


class QueueEstimate:
    """How many requests wait in an instance, between two looks at it.

    While something waits, what comes waits, and what leaves lets a waiting request run. If nothing waits, what comes takes the
    free places first; how many there are is known once something was seen to wait, and until then all of it runs.

    Example: a look shows 16 running and 5 waiting, and 2 end: 3 wait. A look shows 10 running, and 8 more are sent: since
    16 ran when some waited, 2 of them wait.
    """

    __slots__ = ("_in_flight", "_most_running", "_running", "_waiting")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all: the instance is down, and what comes up may be another one."""
        self._in_flight = self._waiting = self._running = self._most_running = 0

    def look(self, waiting: int, running: int, in_flight: int) -> None:
        """Take over what the instance shows, while it has `in_flight` requests of ours."""
        self._waiting, self._running, self._in_flight = waiting, running, in_flight
        if waiting:
            self._most_running = running

    def waiting(self, in_flight: int) -> int:
        """Return how many wait while the instance has `in_flight` requests of ours."""
        change = in_flight - self._in_flight
        if self._waiting:
            return max(0, self._waiting + change)
        return max(0, self._running + change - self._most_running) if self._most_running else 0


def utilization(load: FleetLoad, queue_depth: float, kv_usage: float, max_concurrency: int = 100) -> float:
    """Return the mean over the instances of waiting requests by `queue_depth`, or of the used share of the KV blocks by
    `kv_usage`, whichever is more (GAIE's saturation detector, as BLIS has it). An instance that says neither counts with what
    is in flight there by `max_concurrency`."""
    instances = load.instances
    if not instances:
        return 1.0
    total = 0.0
    for each in instances:
        if each.waiting is None and each.kv_usage is None:
            # Taken for idle it would hide how loaded the fleet is, and taken for saturated it would keep everything out. This
            # is as good as the guess of what an instance can carry.
            total += each.in_flight / max_concurrency
        else:
            total += max((each.waiting or 0) / queue_depth, (each.kv_usage or 0.0) / kv_usage)
    return total / len(instances)


def total_in_flight(load: FleetLoad) -> int:
    """Return the requests in flight at all instances together."""
    return sum(instance.in_flight for instance in load.instances)


def _never_saturated(load: FleetLoad, config: FlowControlConfig) -> SaturationGauge:
    return lambda unseen: 0.0


def _by_concurrency(load: FleetLoad, config: FlowControlConfig) -> SaturationGauge:
    in_flight, capacity = total_in_flight(load), len(load.instances) * config.max_concurrency
    return lambda unseen: (in_flight + unseen) / capacity if capacity else 1.0


def _by_utilization(load: FleetLoad, config: FlowControlConfig) -> SaturationGauge:
    # An unseen request is taken to wait at its instance. If it runs there at once, it has counted for too much for a moment,
    # which is safer than for too little: many may be admitted before an instance shows the first of them.
    thresholds = (config.queue_depth_threshold, config.kv_cache_util_threshold, config.max_concurrency)
    shown = utilization(load, *thresholds)
    capacity = len(load.instances) * config.queue_depth_threshold
    return lambda unseen: shown + unseen / capacity if capacity else shown


SATURATION_DETECTORS: Final[Mapping[DetectorName, SaturationDetector]] = {
    "never": _never_saturated,
    "concurrency": _by_concurrency,
    "utilization": _by_utilization,
}
