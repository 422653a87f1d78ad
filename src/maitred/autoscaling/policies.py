"""The autoscaling policies.

**in-flight** and **kv-usage** go by a ratio, as the Horizontal Pod Autoscaler of Kubernetes does (its documentation, "Algorithm
details"), with its tolerance of 10 %:

    desired = ceil(instances · metric / target), and no change while metric / target is within 1 ± 0.1

The number of requests in flight is what Knative calls concurrency. By Little's law a constant load of λ requests per second
with a time of W in the system needs ceil(λ W / target) instances.

**queue-depth** and **slo-attainment** react to what goes wrong, which says nothing of how many instances would do while
nothing does. So they grow in proportion to it, and shrink by one instance when the batches and the KV memory of one fewer
would be filled to less than the share `low`.
"""

from __future__ import annotations

from math import ceil

from maitred.autoscaling.base import AUTOSCALERS, AutoscalerInfo, FleetState
from maitred.core.units import MILLISECOND

_TOLERANCE = 0.1
_GROWTH = 1.25
"""Factor by which a fleet grows that misses its SLO."""
_LEAST, _MOST = 0.001, 1e9
"""Bounds of targets."""


@AUTOSCALERS.register("in-flight")
class InFlightTarget:
    """As many instances as hold `target` requests in flight each."""

    about = AutoscalerInfo(summary="`target` requests in flight for each instance", reads="requests in flight")

    def __init__(self, target: float = 32.0) -> None:
        """Raises ValueError for a target outside its bounds."""
        self._target = _target("target", target)

    def desired(self, state: FleetState) -> int:
        return _by_ratio(state.size, state.in_flight / (state.size * self._target) if state.size else 1.0)


@AUTOSCALERS.register("kv-usage")
class KvUsageTarget:
    """As many instances as keep the used share of KV blocks at `target`."""

    about = AutoscalerInfo(summary="KV blocks used to the share `target`", reads="KV usage")

    def __init__(self, target: float = 0.6) -> None:
        """Raises ValueError for a target outside its bounds."""
        self._target = _share("target", target)

    def desired(self, state: FleetState) -> int:
        # Those that start have no KV in use, and will share what there is.
        used = state.kv_usage * state.serving / state.size if state.size else self._target
        return _by_ratio(state.size, used / self._target)


@AUTOSCALERS.register("queue-depth")
class QueueDepthTarget:
    """More instances while more than `target` requests wait for each; one fewer when nothing waits and batches are empty."""

    about = AutoscalerInfo(
        summary="more while over `target` requests wait for each; one fewer where batches have room",
        reads="waiting and running requests",
    )

    def __init__(self, target: float = 4.0, low: float = 0.6) -> None:
        """Raises ValueError for a number outside its bounds."""
        self._target, self._low = _target("target", target), _share("low", low)

    def desired(self, state: FleetState) -> int:
        if state.waiting > self._target * state.size:
            return state.size + max(1, ceil(state.waiting / self._target) - state.size)
        return state.size - 1 if not state.waiting and _has_room(state, self._low) else state.size


@AUTOSCALERS.register("slo-attainment")
class SloAttainment:
    """A quarter more instances while less than the share `attainment` of the requests had their first token in `ttft_ms`."""

    about = AutoscalerInfo(
        summary="a quarter more while fewer than `attainment` have a TTFT of `ttft_ms`; one fewer where batches have room",
        reads="TTFT of the requests that ended, running requests",
    )

    def __init__(self, ttft_ms: float = 2000.0, attainment: float = 0.95, low: float = 0.6) -> None:
        """Raises ValueError for a number outside its bounds."""
        self._limit = _target("ttft_ms", ttft_ms) * MILLISECOND
        self._attainment, self._low = _share("attainment", attainment), _share("low", low)

    def desired(self, state: FleetState) -> int:
        in_time = sum(ttft <= self._limit for ttft in state.ttfts)
        if in_time < self._attainment * len(state.ttfts):
            # Those that start now will help: a miss that was seen before is no reason for more.
            return state.size if state.starting else max(state.size + 1, ceil(state.size * _GROWTH))
        return state.size - 1 if _has_room(state, self._low) else state.size


def _by_ratio(size: int, ratio: float) -> int:
    """Return the number of instances that brings the ratio of a metric to its target to 1."""
    return size if abs(ratio - 1) <= _TOLERANCE else ceil(size * ratio - 1e-9)


def _has_room(state: FleetState, low: float) -> bool:
    """Return whether the batches and the KV memory of one instance fewer would be filled to less than the share `low`."""
    left = (state.serving - 1) / state.serving if state.serving else 0.0
    # On a small GPU KV memory is full long before the batch is: by slots alone its fleet would shrink into the queue.
    has_room = state.running < low * left * state.slots and state.kv_usage < low * left
    return not state.starting and not state.waiting and has_room


def _target(name: str, value: float, most: float = _MOST) -> float:
    """Return a target. Raises ValueError for one that no fleet could keep."""
    if not _LEAST <= value <= most:
        raise ValueError(f"{name} must be from {_LEAST:g} to {most:,.0f}, not {value:g}")
    return value


def _share(name: str, value: float) -> float:
    """Return a share. Raises ValueError for one that is none."""
    return _target(name, value, 1.0)
