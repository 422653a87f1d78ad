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
from typing import TYPE_CHECKING

from maitred.errors import MaitredError
from maitred.request import PriorityClass, RequestId
from maitred.units import Micros

if TYPE_CHECKING:
    from maitred.admission.books import Totals
    from maitred.admission.tenants import Tenant


class State(IntEnum):
    NEW = 0
    QUEUED = 1
    AWAITING = 2
    ADMITTED = 3
    STREAMING = 4
    VICTIM = 5
    LEFT = 6


class Event(IntEnum):
    ADMIT = 0
    QUEUE = 1
    AWAIT = 2
    REJECT = 3
    FIRST_BYTE = 4
    PREEMPT = 5
    RETRY = 6
    RELEASE = 7


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.NEW: {
        Event.ADMIT: State.ADMITTED,
        Event.QUEUE: State.QUEUED,
        Event.AWAIT: State.AWAITING,
        Event.REJECT: State.LEFT,
    },
    State.QUEUED: {
        Event.ADMIT: State.ADMITTED,
        Event.REJECT: State.LEFT,
        Event.RELEASE: State.LEFT,
    },
    State.AWAITING: {
        Event.ADMIT: State.ADMITTED,
        Event.QUEUE: State.QUEUED,
        Event.REJECT: State.LEFT,
        Event.RELEASE: State.LEFT,
    },
    State.ADMITTED: {
        Event.FIRST_BYTE: State.STREAMING,
        Event.PREEMPT: State.VICTIM,
        Event.RELEASE: State.LEFT,
    },
    State.STREAMING: {
        Event.FIRST_BYTE: State.STREAMING,
        Event.RELEASE: State.LEFT,
    },
    State.VICTIM: {
        Event.RETRY: State.QUEUED,
        Event.RELEASE: State.LEFT,
    },
    State.LEFT: {},
}

HOLDING = (State.ADMITTED, State.STREAMING, State.VICTIM)
"""The states that hold a slot."""

_NEXT = tuple(tuple(TRANSITIONS[state].get(event) for event in Event) for state in State)
"""The same table, by number: looked up three times per request."""


class TransitionError(MaitredError):
    """A driver told a core something that cannot be: a defect of the driver."""


class Ticket:
    """One request, as admission knows it. A driver makes it, hands it to `submit`, and from then on only reads it."""

    __slots__ = (
        "admitted_at",
        "charge",
        "cost",
        "id",
        "lane",
        "other",
        "pool",
        "priority_class",
        "promoted",
        "queued_at",
        "retried",
        "share",
        "state",
        "submitted_at",
        "tenant",
        "totals",
        "turn",
    )

    totals: Totals
    """Where it is counted; set by the core."""

    def __init__(
        self,
        request_id: RequestId,
        pool: str,
        priority_class: PriorityClass = PriorityClass.DEFAULT,
        tenant: str = "",
        cost: int = 1,
    ) -> None:
        self.id = request_id
        self.pool = pool
        """Which slots it asks for: the model's."""
        self.priority_class = priority_class
        """The effective class, after any cap."""
        self.tenant = tenant
        """As policies name it: `auth:acme`; empty if nobody knows."""
        self.cost = cost
        """Tokens of its prompt and its answer, as far as they can be known; counts with `slot_cost: tokens` only."""
        self.state = State.NEW
        self.submitted_at: Micros = 0
        """Since when it is here; its queue timeout counts from here, also when it is tried again."""
        self.queued_at: Micros | None = None
        """When it joined the queue (again); None if it never did. A preemptor that waits for its victim is in no queue."""
        self.admitted_at: Micros | None = None
        """When it last took a slot."""
        self.promoted = False
        self.retried = False
        """It was a victim once, and is left alone now."""
        self.other: Ticket | None = None
        """A victim's preemptor, a waiting preemptor's victim."""
        self.lane = 0
        """Index of the slots and the queue it uses: its class, where there are classes."""
        self.charge = 0
        """What its slot counts for while it holds it."""
        self.turn = 0
        """Its place in the order of those who queue."""
        self.share: Tenant | None = None
        """Its tenant's account, if policies limit it."""

    def on(self, event: Event) -> None:
        """Raises TransitionError if `event` cannot happen in this state."""
        following = _NEXT[self.state][event]
        if following is None:
            raise TransitionError(f"request {self.id} is {self.state.name}: {event.name} cannot happen")
        self.state = following

    def __repr__(self) -> str:
        return f"Ticket({self.id}, {self.pool!r}, {self.priority_class.name}, {self.state.name})"
