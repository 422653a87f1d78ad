"""Load shedding: while instances are loaded, less urgent requests are refused."""

from __future__ import annotations

from math import isfinite
from typing import Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.saturation import utilization
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros

_SHED: Final = Refusal("tier_shed", message="the backends are loaded, and more urgent requests go first")
_SATURATED: Final = Refusal("saturated", message="the backends are saturated, and this request can be shed")


@POLICIES.register("tier-shed")
class TierShed(AdmissionPolicy):
    """Refuses requests below an SLO priority while the most loaded instance is above a threshold (BLIS `tier-shed`).

    The load of an instance is what waits, runs and is in flight there (`InstanceLoad.effective_load`).
    """

    reads_load = True

    def __init__(self, threshold: int = 0, min_priority: int = 3) -> None:
        """Raises ValueError for a negative `threshold`."""
        if threshold < 0:
            raise ValueError(f"threshold must be at least 0, not {threshold}")
        self._threshold = threshold
        self._min_priority = min_priority

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        if ticket.slo_priority >= self._min_priority:
            return None
        if all(instance.effective_load <= self._threshold for instance in load.instances):
            return None
        return _SHED


@POLICIES.register("gaie-legacy")
class GaieLegacy(AdmissionPolicy):
    """Refuses sheddable requests while the fleet is saturated (BLIS `gaie-legacy`).

    Sheddable requests have an SLO priority below 0. The fleet is saturated at a mean utilization of 1 (`saturation`),
    as the Gateway API Inference Extension (llm-d) has it.
    """

    reads_load = True

    def __init__(self, qd_threshold: float = 5.0, kv_threshold: float = 0.8) -> None:
        """`qd_threshold` is in waiting requests, `kv_threshold` a share of an instance's KV blocks. Raises ValueError."""
        if not (qd_threshold > 0 and isfinite(qd_threshold)):
            raise ValueError(f"qd_threshold must be more than 0, not {qd_threshold}")
        if not 0 < kv_threshold <= 1:
            raise ValueError(f"kv_threshold must be above 0 and at most 1, not {kv_threshold}")
        self._queue_depth = qd_threshold
        self._kv_usage = kv_threshold

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        if not ticket.sheddable or utilization(load, self._queue_depth, self._kv_usage) < 1.0:
            return None
        return _SATURATED
