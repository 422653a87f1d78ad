"""While the fleet is saturated, sheddable requests are refused, as the Gateway API Inference Extension (llm-d) has it.

Sheddable: of an SLO priority below 0. Saturated: the instances' utilisation is 1 or more on average (see `saturation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.admission.policies.config import PolicyConfig
from maitred.admission.policies.policy import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.saturation import utilization
from maitred.admission.vocabulary import Reason
from maitred.contracts import FleetLoad
from maitred.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


@POLICIES.register("gaie-legacy")
class GaieLegacy(AdmissionPolicy):
    """Refuses the sheddable while the fleet is saturated (BLIS `gaie-legacy`)."""

    reads_load = True

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self._queue_depth = config.gaie_qd_threshold
        self._kv_usage = config.gaie_kv_threshold

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        if not ticket.sheddable or utilization(load, self._queue_depth, self._kv_usage) < 1.0:
            return None
        return Refusal(Reason.SATURATED)
