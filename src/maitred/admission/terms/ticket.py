"""Ticket: the record of one request's life in admission.

    NEW ──admit──▶ ADMITTED ──first_byte──▶ STREAMING ──release──▶ LEFT
     │                │ ▲
     │            preempt └─────────── admit ───────────┐
     │                ▼                                 │
     │            VICTIM ──release──▶ LEFT              │
     │                ├────decline──▶ STREAMING         │
     │                └────retry────▶ QUEUED ───────────┤
     ├──queue──▶ QUEUED ──reject, release──▶ LEFT       │
     │             │ ▲                                  │
     │         await queue                              │
     │             ▼ │                                  │
     ├──await──▶ AWAITING ──────────────────────────────┘
     └──reject──▶ LEFT

An event that the table does not name for a state raises. Three states hold a slot. The slot of an ADMITTED request can
be taken back; and if its backend fails and takes a slot along, the request queues again. The response of a STREAMING
request has started, so its slot cannot be taken back. A VICTIM has lost its slot and is about to give it up. So first
byte and preemption exclude each other, whichever comes first. An AWAITING request is a preemptor that waits until its
victim has left.

Where the first byte is decided in another process than the preemption, the news of both may cross. The first byte has been
sent then, and wins: the VICTIM declines the preemption, and keeps its slot.

A core forgets a ticket when it has LEFT. Events for such a request are ignored: they never reach the table.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from maitred.admission.terms.counters import ClassCounters
from maitred.admission.terms.tenants import TenantAccount
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
    DECLINE = 8


TRANSITIONS: dict[TicketState, dict[TicketEvent, TicketState]] = {
    TicketState.NEW: {
        TicketEvent.ADMIT: TicketState.ADMITTED,
        TicketEvent.QUEUE: TicketState.QUEUED,
        TicketEvent.AWAIT: TicketState.AWAITING,
        TicketEvent.REJECT: TicketState.LEFT,
    },
    TicketState.QUEUED: {
        TicketEvent.ADMIT: TicketState.ADMITTED,
        TicketEvent.AWAIT: TicketState.AWAITING,
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
        TicketEvent.QUEUE: TicketState.QUEUED,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.STREAMING: {
        TicketEvent.FIRST_BYTE: TicketState.STREAMING,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.VICTIM: {
        TicketEvent.DECLINE: TicketState.STREAMING,
        TicketEvent.RETRY: TicketState.QUEUED,
        TicketEvent.RELEASE: TicketState.LEFT,
    },
    TicketState.LEFT: {},
}

_NEW: Final = TicketState.NEW  # members of enums are slow to look up
SLOT_HOLDING_STATES = (TicketState.ADMITTED, TicketState.STREAMING, TicketState.VICTIM)
"""The states that hold a slot."""

_TRANSITION_TABLE = tuple(tuple(TRANSITIONS[state].get(event) for event in TicketEvent) for state in TicketState)
"""TRANSITIONS by number, because it is looked up three times per request."""


class TransitionError(MaitredError):
    """A driver gave a core an input that is impossible in this state: a defect of the driver."""


class Ticket:
    """One request, as admission knows it. A driver creates it, passes it to `submit`, and from then on only reads it."""

    __slots__ = (
        *(
            "admitted_at",
            "charged",
            "charged_in",
            "charged_until",
            "client_id",
            "cost",
            "counters",
            "id",
            "lane",
            "pool",
            "preemption_peer",
            "priority_class",
            "promoted",
            "prompt_tokens",
        ),
        *("queued_at", "retried", "sequence_number", "sequences", "slo_priority", "slo_target", "slot_units", "state"),
        *("stranded", "submitted_at", "tenant", "tenant_account", "victim_group"),
    )

    def __init__(
        self,
        id: RequestId,  # noqa: A002 - as the request has it
        pool: str,
        priority_class: PriorityClass = PriorityClass.DEFAULT,
        tenant: str = "",
        cost: int = 1,
        prompt_tokens: int = 0,
        slo_priority: int = 3,
        slo_target: Micros | None = None,
        sequences: int = 1,
        client_id: str = "",
    ) -> None:
        # All in one function, and no defaults in the class: those would cost every request a call each, and these a look-up in
        # the type at each read.
        self.id, self.client_id = id, client_id  # the second one, by which its client knows it, for logs
        self.pool = pool
        """The model that it asks a slot of."""
        self.priority_class = priority_class
        """The effective class, after the cap of its tenant."""
        self.tenant = tenant
        """As policies name it: `auth:acme`; empty if it is not known."""
        self.cost = cost
        """Tokens of its prompt and its answer, as far as they are known in advance. Used with `slot_cost: tokens`, and among
        tenants with weights."""
        self.prompt_tokens = prompt_tokens
        self.sequences = sequences
        """Sequences that it makes in the engine at once, and so the slots that it asks for."""
        self.slo_priority = slo_priority
        """The priority of its SLO class: larger is more urgent, less than 0 is sheddable."""
        self.slo_target = slo_target
        """The time within which its first token should come, µs, or None if there is no target."""
        self.state = _NEW
        self.submitted_at: Micros = 0
        """When it was submitted, µs. Its queue timeout counts from here, also when it is tried again."""
        self.queued_at: Micros = 0
        """When it last joined a queue, or began to wait for a victim's slot, µs. Then it is in no queue."""
        self.admitted_at: Micros = 0
        """When it last took a slot, µs."""
        self.promoted = False
        """Whether it was admitted because it starved; then it is never a victim."""
        self.stranded = False
        """Whether the slot that it holds goes when it leaves, because its backend takes no new requests; then it is no
        victim."""
        self.retried = False
        """Whether it was a victim once; then it is never one again."""
        self.preemption_peer: Ticket | None = None
        """The preemptor of a victim, and the victim of a preemptor that waits for it."""
        self.victim_group: int | None = None
        """The group in which it may be chosen as a victim (`preemption`), or None if it may not. Set by the pool."""
        self.lane = 0
        """Index of the queue and the slots that it uses: its class, where there are classes."""
        self.charged = 0
        """The tokens that its tenant was charged for it; 0 if it did not wait among tenants with weights (`queues`)."""
        self.charged_in = 0
        """The busy period of its lane in which that was."""
        self.charged_until = 0
        """The virtual time of its tenant then."""
        self.slot_units = 0
        """Units that its slot takes (`slots`), as last computed; fixed while it holds a slot."""
        self.sequence_number = 0
        """Its place in its queue; among holders of slots and waiting preemptors, the order in which they became such."""
        self.tenant_account: TenantAccount | None = None
        """The account of its tenant, if the configuration limits the tenant; set by the core."""
        self.counters: ClassCounters
        """The counters of its class; set by the core in `submit`, and absent before."""

    @property
    def sheddable(self) -> bool:
        """Whether it may be refused in favour of more urgent requests."""
        return self.slo_priority < 0

    def join_account(self, accounts: dict[str, TenantAccount]) -> None:
        """Count from now on in the account of its tenant, if that has one."""
        account = self.tenant_account = accounts.get(self.tenant)
        if account is not None and self.sequences > account.most_slots:
            account.most_slots = self.sequences

    def transition(self, event: TicketEvent) -> None:
        """Go to the state that follows `event`. Raises TransitionError if the event cannot happen in this state."""
        following = _TRANSITION_TABLE[self.state][event]
        if following is None:
            raise TransitionError(f"request {self.id} is {self.state.name}: {event.name} cannot happen")
        self.state = following

    def __repr__(self) -> str:
        return f"Ticket({self.id}, {self.pool!r}, {self.priority_class.name}, {self.state.name})"
