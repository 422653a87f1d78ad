"""An admission policy as somebody outside would write it."""

from __future__ import annotations

from maitred.admission import AdmissionPolicy, Reason, Refusal, Ticket
from maitred.contracts import FleetLoad


class ShortPrompts(AdmissionPolicy):
    """No prompt of more than 100 tokens."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: int) -> Refusal | None:
        return Refusal(Reason.POLICY) if ticket.prompt_tokens > 100 else None
