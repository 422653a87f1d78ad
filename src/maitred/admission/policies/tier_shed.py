"""While some instance is loaded, only urgent requests enter.

Loaded: its load (waiting + running + in flight, `InstanceLoad.effective_load`) is above `threshold`. Urgent: of an SLO
priority of at least `min_priority`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


_SHED: Final = Refusal("tier_shed", message="the backends are loaded, and more urgent requests go first")


@POLICIES.register("tier-shed")
class TierShed(AdmissionPolicy):
    """Refuses the less urgent while the most loaded instance is above a threshold (BLIS `tier-shed`)."""

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
