"""Nobody may enter: closed, or a test of what clients do then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros

if TYPE_CHECKING:
    from maitred.admission.ticket import Ticket


_CLOSED: Final = Refusal("reject_all", 503, "no requests are admitted at present")


@POLICIES.register("reject-all")
class RejectAll(AdmissionPolicy):
    """Refuses everybody (BLIS `reject-all`)."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return _CLOSED
