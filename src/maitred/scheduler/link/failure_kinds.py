"""How a gateway says that a backend has failed."""

from __future__ import annotations

from enum import IntEnum


class FailureKind(IntEnum):
    """How a backend has failed a request, as far as it matters to where the request goes next."""

    OTHER = 0
    ANSWERED = 1
    """It has answered with an error: it may have the request once more, where no other backend is left."""
    BUSY = 2
    """It has answered that it has no room."""
    BROKEN = 3
    """It has closed the connection, as the end of a process looks."""
    NO_CONNECTION = 4
    """As many connections as may be open carry other requests."""
    ABANDONED = 5
    """It was given up before it answered, and may have the request again."""
    USAGE_REFUSED = 6
    """It rejects what the gateway has added to the request, and gets it again without that."""
    WITHHELD = 7
    """It was not sent: the lease of the gateway was over. The same backend may have it."""


class OutcomeKind(IntEnum):
    """What a gateway says of a backend."""

    FAILURE = 0
    """It has failed a request."""
    BUSY = 1
    """It has no room at present."""
    REST = 2
    """It has asked to be left alone for a time."""
    UNREACHABLE = 3
    """No connection could be made."""
