"""Admission policies as users outside this project write them."""

from __future__ import annotations

from maitred.admission import AdmissionPolicy, Reason, Refusal, Ticket
from maitred.core.contracts import FleetLoad


class AtMost(AdmissionPolicy):
    """No prompt of more than `limit` tokens, with a refusal that says so."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def refusal(self, ticket: Ticket, load: FleetLoad, now: int) -> Refusal | None:
        if ticket.prompt_tokens <= self._limit:
            return None
        message = f"{ticket.prompt_tokens} tokens are more than {self._limit}"
        return Refusal("too_many_tokens", 413, message, is_final=True)


class ShortPrompts(AdmissionPolicy):
    """No prompt of more than 100 tokens."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: int) -> Refusal | None:
        return Refusal(Reason.POLICY) if ticket.prompt_tokens > 100 else None
