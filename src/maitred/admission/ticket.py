"""Ticket: the record of one request's life in admission.

    NEW ──admit──▶ ADMITTED ──first_byte──▶ STREAMING ──release──▶ LEFT
     ├──queue──▶ QUEUED ──admit──▶ ADMITTED ──release──▶ LEFT
     └──reject──▶ LEFT ◀──reject, release── QUEUED

The table is the whole truth: an event that it does not name for a state raises. Two states hold a slot, ADMITTED and
STREAMING; they differ in that a streaming request has shown its client something and can no longer be taken back.
A core forgets a ticket when it has LEFT, so events for such a request never reach the table: they are ignored there.
"""

from __future__ import annotations

from enum import IntEnum

from maitred.errors import MaitredError
from maitred.request import PriorityClass, RequestId
from maitred.units import Micros


class State(IntEnum):
    NEW = 0
    QUEUED = 1
    ADMITTED = 2
    STREAMING = 3
    LEFT = 4


class Event(IntEnum):
    ADMIT = 0
    QUEUE = 1
    REJECT = 2
    FIRST_BYTE = 3
    RELEASE = 4


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.NEW: {
        Event.ADMIT: State.ADMITTED,
        Event.QUEUE: State.QUEUED,
        Event.REJECT: State.LEFT,
    },
    State.QUEUED: {
        Event.ADMIT: State.ADMITTED,
        Event.REJECT: State.LEFT,
        Event.RELEASE: State.LEFT,
    },
    State.ADMITTED: {
        Event.FIRST_BYTE: State.STREAMING,
        Event.RELEASE: State.LEFT,
    },
    State.STREAMING: {
        Event.FIRST_BYTE: State.STREAMING,
        Event.RELEASE: State.LEFT,
    },
    State.LEFT: {},
}


class TransitionError(MaitredError):
    """A driver told a core something that cannot be: a defect of the driver."""


class Ticket:
    """One request, as admission knows it. A driver makes it, hands it to `submit`, and from then on only reads it."""

    __slots__ = ("id", "pool", "priority_class", "state", "submitted_at")

    def __init__(self, request_id: RequestId, pool: str, priority_class: PriorityClass = PriorityClass.DEFAULT) -> None:
        self.id = request_id
        self.pool = pool
        """Which slots it asks for: the model's."""
        self.priority_class = priority_class
        """The effective class, after any cap."""
        self.state = State.NEW
        self.submitted_at: Micros = 0
        """Since when it is here; its queue timeout counts from here."""

    def on(self, event: Event) -> None:
        """Raises TransitionError if `event` cannot happen in this state."""
        try:
            self.state = TRANSITIONS[self.state][event]
        except KeyError:
            raise TransitionError(f"request {self.id} is {self.state.name}: {event.name} cannot happen") from None

    def __repr__(self) -> str:
        return f"Ticket({self.id}, {self.pool!r}, {self.priority_class.name}, {self.state.name})"
