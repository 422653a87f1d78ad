"""While the fleet is saturated, sheddable requests are refused, as the Gateway API Inference Extension (llm-d) has it.

Sheddable: of an SLO priority below 0. Saturated: the instances' utilisation is 1 or more on average (see `saturation`).
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.saturation import utilization
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


_SATURATED: Final = Refusal("saturated", message="the backends are saturated, and this request can be shed")


@POLICIES.register("gaie-legacy")
class GaieLegacy(AdmissionPolicy):
    """Refuses the sheddable while the fleet is saturated (BLIS `gaie-legacy`)."""

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
