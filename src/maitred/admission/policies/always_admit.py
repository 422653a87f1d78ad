"""Everybody may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


@POLICIES.register("always-admit")
class AlwaysAdmit(AdmissionPolicy):
    """Refuses nobody (BLIS `always-admit`): what stands behind it decides alone."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return None
