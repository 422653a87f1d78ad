"""Policies that treat all requests alike."""

from __future__ import annotations

from typing import Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.ticket import Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros

_CLOSED: Final = Refusal("reject_all", 503, "no requests are admitted at present")


@POLICIES.register("always-admit")
class AlwaysAdmit(AdmissionPolicy):
    """Refuses no request (BLIS `always-admit`)."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return None


@POLICIES.register("reject-all")
class RejectAll(AdmissionPolicy):
    """Refuses every request (BLIS `reject-all`): for a fleet that is closed, or to test what clients do then."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return _CLOSED
