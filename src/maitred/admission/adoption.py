"""Requests that another core has decided on, taken over each in its state: a scheduler that begins to lead learns them so.

A request that holds a slot keeps it, whatever the rules say now and also beyond the capacity, as after a shrink. A request that
waits joins those that wait here, in the order of submission, which its age tells. Only requests that were put in front (victims
that are tried again, preemptors without a victim) stay before it.

Example: x was submitted at 10 s and waits here. Two requests are adopted at 12 s, y with an age of 3 s and z with one of 1 s.
The order is y, x, z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from maitred.admission.terms.counters import ClassCounters
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket, TicketState, TransitionError
from maitred.admission.waiting.queues import SequenceNumbers
from maitred.core.request import RequestId

ADOPTABLE: Final = (TicketState.QUEUED, TicketState.ADMITTED, TicketState.STREAMING)
"""The states in which a request may be taken over."""


def enlist(
    adopted: Sequence[Ticket],
    tickets: dict[RequestId, Ticket],
    counters: Mapping[str, Sequence[ClassCounters]],
    sequence_numbers: SequenceNumbers,
) -> None:
    """Add `adopted` to `tickets`, count them, and number them with those that are there. Their pools must be filled anew
    afterwards. Raises TransitionError for an id that is there already, or a state in which none is taken over, and KeyError for
    an unknown model; nothing has changed then."""
    ids = {ticket.id for ticket in adopted}
    wrong = [ticket for ticket in adopted if ticket.id in tickets or ticket.state not in ADOPTABLE]
    if wrong or len(ids) < len(adopted):
        raise TransitionError(f"{(wrong or adopted)[0]} cannot be adopted")
    of_class = [counters[ticket.pool][ticket.priority_class] for ticket in adopted]
    for ticket, counted in zip(adopted, of_class, strict=True):
        ticket.counters = counted
        counted.arrived += 1
        if ticket.state in SLOT_HOLDING_STATES:
            counted.admitted += 1
            counted.in_flight += 1
        else:
            ticket.queued_at = ticket.submitted_at
            counted.waiting += 1
        tickets[ticket.id] = ticket
    # Below 0 are those that were put in front, which keep their numbers, and so their places.
    in_line = [ticket for ticket in tickets.values() if ticket.state is TicketState.QUEUED and ticket.sequence_number >= 0]
    for ticket in sorted(in_line, key=_by_submission):
        ticket.sequence_number = sequence_numbers.next_back()
    # The newest holder is the first victim, so a holder that is adopted has its place by when it got its slot.
    for ticket in sorted((t for t in tickets.values() if t.state in SLOT_HOLDING_STATES), key=_by_admission):
        ticket.sequence_number = sequence_numbers.next_back()


def taken_over(ticket: Ticket) -> Ticket:
    """Return a request of another core as one that may be taken over: a victim has its slot still, and a preemptor waits."""
    t, state = ticket, ticket.state
    other = Ticket(
        t.id,
        t.pool,
        t.priority_class,
        t.tenant,
        t.cost,
        t.prompt_tokens,
        t.slo_priority,
        t.slo_target,
        t.sequences,
        t.client_id,
    )
    other.state = {TicketState.VICTIM: TicketState.ADMITTED, TicketState.AWAITING: TicketState.QUEUED}.get(state, state)
    other.submitted_at, other.admitted_at, other.sequence_number = t.submitted_at, t.admitted_at, t.sequence_number
    other.promoted, other.retried, other.stranded = t.promoted, t.retried, t.stranded
    return other


def _by_submission(ticket: Ticket) -> tuple[int, RequestId]:
    return ticket.submitted_at, ticket.id


def _by_admission(ticket: Ticket) -> tuple[int, int, RequestId]:
    return ticket.admitted_at, ticket.sequence_number, ticket.id
