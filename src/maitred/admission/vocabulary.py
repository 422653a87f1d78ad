"""What admission decides, why, and how a request may leave: closed sets."""

from __future__ import annotations

from enum import StrEnum


class Action(StrEnum):
    """What was decided about the subject."""

    ADMIT = "admit"
    """It holds a slot now, until it is released."""
    QUEUE = "queue"
    """It waits; another decision will follow."""
    REJECT = "reject"
    """It may not enter. It has left."""
    CANCEL = "cancel"
    """It was released while it waited. It has left."""


class Reason(StrEnum):
    """Why. The first group goes with `admit`, then `queue`, `reject`, `cancel`."""

    SLOT_FREE = "slot_free"

    NO_CAPACITY = "no_capacity"
    """The pool has no slots at all: no backend is up."""
    NO_SLOT = "no_slot"
    """Every slot is in flight."""
    HELD_BY_RESERVATION = "held_by_reservation"
    """A slot is idle, but a higher class has reserved it."""
    BEHIND_QUEUE = "behind_queue"
    """Peers of its own or a higher class wait already."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"

    CLIENT_GONE = "client_gone"


class End(StrEnum):
    """How a request that held a slot came to its end."""

    DRAINED = "drained"
    """The body was handed to the client whole."""
    CLIENT_GONE = "client_gone"
    FAILED = "failed"
    """The backend, or the gateway itself, could not finish it."""
