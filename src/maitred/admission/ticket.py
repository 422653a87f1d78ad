"""Ticket: the record of one request's life in admission.

    NEW ──admit──▶ ADMITTED ──first_byte──▶ STREAMING ──release──▶ LEFT
     │                │ ▲
     │            preempt └─────────── admit ───────────┐
     │                ▼                                 │
     │            VICTIM ──release──▶ LEFT              │
     │                └────retry────▶ QUEUED ───────────┤
     ├──queue──▶ QUEUED ──reject, release──▶ LEFT       │
     ├──await──▶ AWAITING ──queue──▶ QUEUED             │
     │               └──────────────────────────────────┘
     └──reject──▶ LEFT

The table is the whole truth: an event that it does not name for a state raises. Three states hold a slot. ADMITTED can be
taken back; STREAMING has shown its client something and cannot; VICTIM has been taken back and is about to give its slot up.
So first byte and preemption exclude each other, whichever comes first. AWAITING is a preemptor whose victim has not left yet.

A core forgets a ticket when it has LEFT, so events for such a request never reach the table: they are ignored there.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from maitred.admission.counters import ClassCounters
from maitred.admission.tenants import BudgetAccount, TenantAccount
from maitred.core.errors import MaitredError
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros


class TicketState(IntEnum):
    NEW = 0
    QUEUED = 1
    AWAITING = 2
    ADMITTED = 3
    STREAMING = 4
    VICTIM = 5
    LEFT = 6


class TicketEvent(IntEnum):
    ADMIT = 0
    QUEUE = 1
    AWAIT = 2
    REJECT = 3
    FIRST_BYTE = 4
    PREEMPT_SLOT = 5
    RETRY = 6
    RELEASE = 7


TRANSITIONS: dict[TicketState, dict[TicketEvent, TicketState]] = {
    TicketState.NEW: {
        TicketEvent.ADMIT: TicketState.ADMITTED,
        TicketEvent.QUEUE: TicketState.QUEUED,
        TicketEvent.AWAIT: TicketState.AWAITING,
        TicketEvent.REJECT: TicketState.LEFT,
    },
    TicketState.QUEUED: {
        TicketEvent.ADMIT: TicketState.ADMITTED,
        TicketEvent.REJECT: TicketState.LEFT,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.AWAITING: {
        TicketEvent.ADMIT: TicketState.ADMITTED,
        TicketEvent.QUEUE: TicketState.QUEUED,
        TicketEvent.REJECT: TicketState.LEFT,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.ADMITTED: {
        TicketEvent.FIRST_BYTE: TicketState.STREAMING,
        TicketEvent.PREEMPT_SLOT: TicketState.VICTIM,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.STREAMING: {
        TicketEvent.FIRST_BYTE: TicketState.STREAMING,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.VICTIM: {
        TicketEvent.RETRY: TicketState.QUEUED,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.LEFT: {},
}

SLOT_HOLDING_STATES = (TicketState.ADMITTED, TicketState.STREAMING, TicketState.VICTIM)
"""The states that hold a slot."""

_TRANSITION_TABLE = tuple(tuple(TRANSITIONS[state].get(event) for event in TicketEvent) for state in TicketState)
"""The same table, by number: looked up three times per request."""


class TransitionError(MaitredError):
    """A driver told a core something that cannot be: a defect of the driver."""


class Ticket(msgspec.Struct, eq=False, gc=False):
    """One request, as admission knows it. A driver makes it, hands it to `submit`, and from then on only reads it."""

    id: RequestId
    pool: str
    """Which slots it asks for: the model's."""
    priority_class: PriorityClass = PriorityClass.DEFAULT
    """The effective class, after any cap."""
    tenant: str = ""
    """As policies name it: `auth:acme`; empty if nobody knows."""
    cost: int = 1
    """Tokens of its prompt and its answer, as far as they can be known. Counts with `slot_cost: tokens`, and among tenants
    with weights."""
    prompt_tokens: int = 0
    slo_priority: int = 3
    """How urgent its SLO class is; larger is more urgent, less than 0 is sheddable."""
    slo_target: Micros | None = None
    """Within which time its first token should come; None: nobody says."""
    state: TicketState = TicketState.NEW
    submitted_at: Micros = 0
    """Since when it is here; its queue timeout counts from here, also when it is tried again."""
    queued_at: Micros = 0
    """When it joined the queue (again). A preemptor that waits for its victim is in no queue."""
    admitted_at: Micros = 0
    """When it last took a slot."""
    promoted: bool = False
    retried: bool = False
    """It was a victim once, and is left alone now."""
    preemption_peer: Ticket | None = None
    """A victim's preemptor, a waiting preemptor's victim."""
    lane: int = 0
    """Index of the slots and the queue it uses: its class, where there are classes."""
    slot_units: int = 0
    """What its slot counts for, as of when that was last asked; fixed while it holds one."""
    sequence_number: int = 0
    """Its place among those who queue; among those who hold a slot, or await a victim, the order in which they began to."""
    tenant_account: TenantAccount | None = None
    """Its tenant's account, if policies limit it."""
    budget_account: BudgetAccount | None = None
    """Where what its tenant holds is counted, if it has a budget; set by the core."""
    counters: ClassCounters = ClassCounters()
    """Where it is counted; set by the core."""

    @property
    def sheddable(self) -> bool:
        """Whether it may be turned away for the sake of others."""
        return self.slo_priority < 0

    def transition(self, event: TicketEvent) -> None:
        """Raises TransitionError if `event` cannot happen in this state."""
        following = _TRANSITION_TABLE[self.state][event]
        if following is None:
            raise TransitionError(f"request {self.id} is {self.state.name}: {event.name} cannot happen")
        self.state = following

    def __repr__(self) -> str:
        return f"Ticket({self.id}, {self.pool!r}, {self.priority_class.name}, {self.state.name})"
